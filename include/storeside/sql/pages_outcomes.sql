-- The outcome of each object of a bucket pair in one run. The newest row of this run counts; the row of a later run
-- belongs to that run and may have replaced this one. Up to four rows of an object may still be unmerged. The status
-- is checked twice, in the search and on the newest rows, because an earlier try may have left other rows.
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
                AND object > {after:String}
            ORDER BY object
            LIMIT {limit:UInt32} * 4
        )
    ORDER BY object, recorded_ms DESC
    LIMIT 1 BY object
)
WHERE {status:String} = '' OR status = {status:String}
ORDER BY object
LIMIT {limit:UInt32}
