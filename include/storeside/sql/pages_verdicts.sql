-- Validations, newest first, starting after a cursor; the verdict is JSON in `detail`.
SELECT
    run_id, dag_id, task_id, source, state, listed, done, failed, seconds, detail,
    toUnixTimestamp64Milli(recorded_at) AS recorded_ms
FROM storeside.runs FINAL
WHERE kind = 'validate'
    AND ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    AND
    (
        {text:String} = '' OR positionCaseInsensitiveUTF8(dag_id, {text:String}) > 0
        OR positionCaseInsensitiveUTF8(source, {text:String}) > 0
    )
    AND
    (
        {is_first:Bool}
        OR (recorded_ms, run_id, task_id) BEYOND ({before_ms:Int64}, {before_run:String}, {before_task:String})
    )
ORDER BY recorded_ms DIRECTION, run_id DIRECTION, task_id DIRECTION
LIMIT {limit:UInt32}
