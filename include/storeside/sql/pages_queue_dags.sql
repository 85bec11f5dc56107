-- The DAGs whose runs processed events of a queue or leased its messages, and which the visitor may read.
SELECT DISTINCT substring(run_id, 1, position(run_id, '/') - 1) AS dag
FROM
(
    SELECT run_id FROM storeside.events WHERE queue = {queue:String}
    UNION ALL
    SELECT run_id FROM storeside.event_batches WHERE queue = {queue:String}
)
WHERE position(run_id, '/') > 0 AND ({all_dags:Bool} OR has({dags:Array(String)}, dag))
ORDER BY dag
LIMIT 200
