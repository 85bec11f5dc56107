-- The outcome of each object of a bucket pair, and prefix of results, in one run. The ledger has the outcomes that no
-- later run has replaced; storeside.failures has the failures of the run. The newest row counts. The status is checked
-- twice, in the search and on the newest rows, because an earlier try may have left other rows; if these leave too few,
-- the caller asks again with more candidates.
WITH candidates AS
(
    SELECT object, prepend
    FROM
    (
        SELECT object, prepend
        FROM storeside.objects
        WHERE source = {source:String} AND destination = {destination:String} AND run_id = {run:String}
            AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
            AND ({status:String} = '' OR status = {status:String})
            AND
            (
                {is_first:Bool} OR object BEYOND {after_object:String}
                OR object = {after_object:String} AND prepend BEYOND {after_prepend:String}
            )
        ORDER BY object DIRECTION, prepend DIRECTION
        LIMIT {candidates:UInt32}
        UNION ALL
        SELECT object, prepend
        FROM storeside.failures
        WHERE source = {source:String} AND destination = {destination:String} AND run_id = {run:String}
            AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
            AND ({is_first:Bool} OR (object, prepend) BEYOND ({after_object:String}, {after_prepend:String}))
        ORDER BY object DIRECTION, prepend DIRECTION
        LIMIT {candidates:UInt32}
    )
    ORDER BY object DIRECTION, prepend DIRECTION
    LIMIT {candidates:UInt32}
)
SELECT *
FROM
(
    SELECT *
    FROM
    (
        SELECT
            object, prepend, destination_object, toString(status) AS status, reason, bytes_in, bytes_out,
            toUnixTimestamp64Milli(recorded_at) AS recorded_ms
        FROM storeside.objects
        WHERE source = {source:String} AND destination = {destination:String} AND run_id = {run:String}
            AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
            AND (object, prepend) IN (SELECT object, prepend FROM candidates)
        UNION ALL
        SELECT object, prepend, '', state, reason, bytes, 0, toUnixTimestamp64Milli(recorded_at)
        FROM storeside.failures
        WHERE source = {source:String} AND destination = {destination:String} AND run_id = {run:String}
            AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
            AND (object, prepend) IN (SELECT object, prepend FROM candidates)
    )
    ORDER BY object DIRECTION, prepend DIRECTION, recorded_ms DESC, destination_object DESC
    LIMIT 1 BY object, prepend
)
WHERE {status:String} = '' OR status = {status:String}
ORDER BY object DIRECTION, prepend DIRECTION
LIMIT {limit:UInt32}
