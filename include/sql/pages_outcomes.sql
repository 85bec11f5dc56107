-- What one run made of each object of a bucket pair. The newest row of this run counts: a later run's outcome of the
-- same object is that run's, and may have taken this row's place. Four rows of an object may not be merged yet. The
-- status is asked for twice: first to find objects, then of their newest rows, as a try before may have left others.
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
