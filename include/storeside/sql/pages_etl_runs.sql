-- Tasks that recently ran with ETLs; `detail` has their names, the job and the connection.
SELECT run_id, task_id, state, detail, toUnixTimestamp64Milli(recorded_at) AS recorded_ms
FROM storeside.runs FINAL
WHERE ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    AND state = 'running' AND position(detail, '"etls"') > 0 AND recorded_at > now64(3) - toIntervalDay(7)
ORDER BY recorded_at DESC
LIMIT 200
