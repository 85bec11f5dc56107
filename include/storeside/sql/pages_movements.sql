-- Tasks that move data in the chosen order, starting after a cursor; see `storeside.pages.tables.directed`.
SELECT
    run_id, task_id, kind, source, destination, toString(state) AS state, listed, skipped, done, failed,
    bytes_in, bytes_out, seconds, job_seconds,
    if(kind = 'validate', '', detail) AS detail,
    toUnixTimestamp64Milli(recorded_at) AS recorded_ms
FROM storeside.runs FINAL
WHERE ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    AND ({dag:String} = '' OR positionCaseInsensitiveUTF8(dag_id, {dag:String}) > 0)
    AND ({kind:String} = '' OR kind = {kind:String})
    AND ({state:String} = '' OR state = {state:String})
    AND
    (
        {place:String} = '' OR positionCaseInsensitiveUTF8(source, {place:String}) > 0
        OR positionCaseInsensitiveUTF8(destination, {place:String}) > 0
    )
    AND ({run:String} = '' OR run_id = {run:String})
    AND
    (
        {is_first:Bool}
        OR (toFloat64(SORTED), recorded_ms, run_id, task_id)
            BEYOND ({before_value:Float64}, {before_ms:Int64}, {before_run:String}, {before_task:String})
    )
ORDER BY toFloat64(SORTED) DIRECTION, recorded_ms DIRECTION, run_id DIRECTION, task_id DIRECTION
LIMIT {limit:UInt32}
