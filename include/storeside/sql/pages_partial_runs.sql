-- Runs in which tasks left objects without a result, the newest of each DAG in the last `days` days.
SELECT dag_id, run_id
FROM storeside.runs FINAL
WHERE ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    AND dag_id != '' AND ({dag:String} = '' OR positionCaseInsensitiveUTF8(dag_id, {dag:String}) > 0)
    AND recorded_at > now64(3) - toIntervalDay({days:UInt32})
    AND (state IN ('partial', 'failed') OR failed > 0)
GROUP BY dag_id, run_id
ORDER BY max(recorded_at) DESC
LIMIT 50 BY dag_id
LIMIT 10000
