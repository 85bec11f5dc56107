-- How many objects a search finds, up to a limit (see pages_objects).
SELECT count() AS objects
FROM
(
    SELECT DISTINCT source, destination, object
    FROM storeside.objects
    WHERE if({anywhere:Bool}, position(object, {stem:String}) > 0, startsWith(object, {stem:String}))
        AND if(
            {anywhere:Bool},
            position(object, {text:String}) > 0 OR position(destination_object, {text:String}) > 0,
            startsWith(object, {text:String}) OR startsWith(destination_object, {text:String})
        )
        AND ({bucket:String} = '' OR position(source, {bucket:String}) > 0 OR position(destination, {bucket:String}) > 0)
        AND ({status:String} = '' OR status = {status:String})
        AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
    LIMIT {limit:UInt32}
)
