-- The outcome of each object of a bucket pair in one run. The ledger has the outcomes that no later run has replaced;
-- storeside.failures has the failures of the run. The newest row counts. Up to four rows of an object may still be
-- unmerged. The status is checked twice, in the search and on the newest rows, because an earlier try may have left
-- other rows.
SELECT *
FROM
(
    SELECT *
    FROM
    (
        SELECT
            object, destination_object, toString(status) AS status, reason, bytes_in, bytes_out,
            toUnixTimestamp64Milli(recorded_at) AS recorded_ms
        FROM storeside.objects
        WHERE source = {source:String} AND destination = {destination:String} AND run_id = {run:String}
            AND object IN
            (
                SELECT object
                FROM storeside.objects
                WHERE source = {source:String} AND destination = {destination:String} AND run_id = {run:String}
                    AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
                    AND ({status:String} = '' OR status = {status:String})
                    AND ({is_first:Bool} OR object BEYOND {after:String})
                ORDER BY object DIRECTION
                LIMIT {limit:UInt32} * 4
            )
        UNION ALL
        SELECT object, '', state, reason, bytes, 0, toUnixTimestamp64Milli(recorded_at)
        FROM storeside.failures
        WHERE source = {source:String} AND destination = {destination:String} AND run_id = {run:String}
            AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
            AND ({is_first:Bool} OR object BEYOND {after:String})
    )
    ORDER BY object DIRECTION, recorded_ms DESC, destination_object DESC
    LIMIT 1 BY object
)
WHERE {status:String} = '' OR status = {status:String}
ORDER BY object DIRECTION
LIMIT {limit:UInt32}
