-- Outcome of each object version that one run, or one batch of its events, had to load from a bucket into a table
-- (see pages_outcomes).
WITH candidates AS
(
    SELECT key, version
    FROM
    (
        SELECT key, version
        FROM storeside.loads
        WHERE destination = {destination:String} AND bucket = {bucket:String}
            AND (run_id = {run:String} OR startsWith(run_id, concat({run:String}, '/')))
            AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
            AND ({status:String} = '' OR state = {status:String})
            AND
            (
                {is_first:Bool} OR key BEYOND {after_key:String}
                OR key = {after_key:String} AND version BEYOND {after_version:String}
            )
        ORDER BY key DIRECTION, version DIRECTION
        LIMIT {candidates:UInt32}
        UNION ALL
        SELECT object, version
        FROM storeside.failures
        WHERE source = if(startsWith({bucket:String}, 'ais://'), {bucket:String}, concat('s3://', {bucket:String}))
            AND destination = concat('clickhouse://', {destination:String}) AND run_id = {run:String}
            AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
            AND ({is_first:Bool} OR (object, version) BEYOND ({after_key:String}, {after_version:String}))
        ORDER BY object DIRECTION, version DIRECTION
        LIMIT {candidates:UInt32}
    )
    ORDER BY key DIRECTION, version DIRECTION
    LIMIT {candidates:UInt32}
)
SELECT *
FROM
(
    SELECT *
    FROM
    (
        SELECT
            key, version, toString(load_id) AS load_id, toString(state) AS status, reason, rows, rejected, bytes,
            toUnixTimestamp64Milli(toDateTime64(recorded_at, 3)) AS recorded_ms
        FROM storeside.loads
        WHERE destination = {destination:String} AND bucket = {bucket:String}
            AND (run_id = {run:String} OR startsWith(run_id, concat({run:String}, '/')))
            AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
            AND (key, version) IN (SELECT key, version FROM candidates)
        UNION ALL
        SELECT
            object, version, '', if(state = 'done', 'loaded', state), reason, 0, 0, bytes,
            toUnixTimestamp64Milli(recorded_at)
        FROM storeside.failures
        WHERE source = if(startsWith({bucket:String}, 'ais://'), {bucket:String}, concat('s3://', {bucket:String}))
            AND destination = concat('clickhouse://', {destination:String}) AND run_id = {run:String}
            AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
            AND (object, version) IN (SELECT key, version FROM candidates)
    )
    ORDER BY key DIRECTION, version DIRECTION, recorded_ms DESC, load_id DESC
    LIMIT 1 BY key, version
)
WHERE {status:String} = '' OR status = {status:String}
ORDER BY key DIRECTION, version DIRECTION
LIMIT {limit:UInt32}
