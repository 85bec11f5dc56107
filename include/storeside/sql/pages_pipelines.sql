-- What the tasks of each DAG moved in the last `days` days (see pages_movement_totals).
SELECT
    dag_id, sumIf(done, is_moved) AS objects_done, sumIf(bytes_in, is_moved) AS bytes_read,
    toUnixTimestamp64Milli(max(recorded_at)) AS recorded_ms
FROM (SELECT *, kind NOT IN ('validate', 'throughput', 'transform benchmark') AS is_moved FROM storeside.runs FINAL)
WHERE ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    AND dag_id != '' AND ({dag:String} = '' OR positionCaseInsensitiveUTF8(dag_id, {dag:String}) > 0)
    AND recorded_at > now64(3) - toIntervalDay({days:UInt32})
GROUP BY dag_id
ORDER BY recorded_ms DESC
LIMIT {limit:UInt32}
