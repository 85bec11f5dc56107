-- How many events of a queue fit a filter, up to a limit.
SELECT count() AS events
FROM
(
    SELECT 1
    FROM storeside.events FINAL
    WHERE queue = {queue:String}
        AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
        AND ({state:String} = '' OR state = {state:String})
        AND ({text:String} = '' OR position(key, {text:String}) > 0 OR position(bucket, {text:String}) > 0)
    LIMIT {limit:UInt32}
)
