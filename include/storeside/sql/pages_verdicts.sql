-- Validations, newest first, starting after a cursor, or those of one task; the verdict is JSON in `detail`, of loads in
-- its field `verdict`.
SELECT
    run_id, dag_id, task_id, kind, source, destination, state, listed, done, failed, seconds, detail,
    toUnixTimestamp64Milli(recorded_at) AS recorded_ms
FROM storeside.runs FINAL
WHERE (kind = 'validate' OR kind IN ('load', 'events') AND JSONHas(detail, 'verdict'))
    AND ({run_id:String} = '' OR run_id = {run_id:String} AND dag_id = {dag_id:String} AND task_id = {task_id:String})
    AND ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    AND
    (
        {text:String} = '' OR positionCaseInsensitiveUTF8(dag_id, {text:String}) > 0
        OR positionCaseInsensitiveUTF8(source, {text:String}) > 0
        OR positionCaseInsensitiveUTF8(destination, {text:String}) > 0
    )
    AND
    (
        {is_first:Bool}
        OR (recorded_ms, run_id, task_id) BEYOND ({before_ms:Int64}, {before_run:String}, {before_task:String})
    )
ORDER BY recorded_ms DIRECTION, run_id DIRECTION, task_id DIRECTION
LIMIT {limit:UInt32}
