-- The queues whose messages each DAG takes that the visitor may read; `dag` is a part of its name.
SELECT DISTINCT substring(run_id, 1, position(run_id, '/') - 1) AS dag_id, queue
FROM
(
    SELECT run_id, queue FROM storeside.events
    UNION ALL
    SELECT run_id, queue FROM storeside.event_batches
)
WHERE dag_id != '' AND ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    AND ({dag:String} = '' OR positionCaseInsensitiveUTF8(dag_id, {dag:String}) > 0)
ORDER BY dag_id, queue
LIMIT 500
