-- Whether an object is the source or the result of a copy or transform that is done.
SELECT 1 AS found
FROM
(
    SELECT status
    FROM storeside.objects
    WHERE source = {bucket:String} AND object = {object:String}
        AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
    ORDER BY recorded_at DESC
    LIMIT 1 BY source, destination, object, prepend
    UNION ALL
    SELECT status
    FROM storeside.objects
    WHERE destination = {bucket:String} AND destination_object = {object:String}
        AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
    ORDER BY recorded_at DESC
    LIMIT 1 BY source, destination, object, prepend
)
WHERE status = 'done'
LIMIT 1
