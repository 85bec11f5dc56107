-- Tasks that move data, newest first, starting after a cursor.
SELECT
    run_id, task_id, kind, source, destination, toString(state) AS state, listed, skipped, done, failed,
    bytes_in, bytes_out, seconds, job_seconds,
    if(kind = 'validate', '', detail) AS detail,
    toUnixTimestamp64Milli(recorded_at) AS recorded_ms
FROM storeside.runs FINAL
WHERE ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    AND ({dag:String} = '' OR dag_id = {dag:String})
    AND ({kind:String} = '' OR kind = {kind:String})
    AND ({state:String} = '' OR state = {state:String})
    AND ({place:String} = '' OR position(source, {place:String}) > 0 OR position(destination, {place:String}) > 0)
    AND ({run:String} = '' OR run_id = {run:String})
    AND (recorded_ms, run_id, task_id) < ({before_ms:Int64}, {before_run:String}, {before_task:String})
ORDER BY recorded_ms DESC, run_id DESC, task_id DESC
LIMIT {limit:UInt32}
