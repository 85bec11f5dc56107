-- Validations, newest first, starting after a cursor; the verdict is JSON in `detail`.
SELECT
    run_id, dag_id, task_id, source, state, listed, done, failed, seconds, detail,
    toUnixTimestamp64Milli(recorded_at) AS recorded_ms
FROM storeside.runs FINAL
WHERE kind = 'validate'
    AND ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    AND (recorded_ms, run_id, task_id) < ({before_ms:Int64}, {before_run:String}, {before_task:String})
ORDER BY recorded_ms DESC, run_id DESC, task_id DESC
LIMIT {limit:UInt32}
