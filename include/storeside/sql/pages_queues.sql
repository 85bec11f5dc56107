-- The newest depth of each queue whose messages are processed by a DAG that the visitor may read: of the queues with
-- these names or, without names, of the queues that were measured last.
SELECT
    queue, splitByChar('/', queue)[-1] AS name, count() OVER (PARTITION BY name) AS of_this_name,
    argMax(visible, recorded_at) AS visible, argMax(in_flight, recorded_at) AS in_flight,
    argMax(delayed, recorded_at) AS delayed, argMax(dead, recorded_at) AS dead,
    argMax(oldest_seconds, recorded_at) AS oldest_seconds,
    toUnixTimestamp64Milli(max(recorded_at)) AS recorded_ms
FROM storeside.queue_depths
WHERE (empty({names:Array(String)}) OR has({names:Array(String)}, name))
    AND ({all_dags:Bool} OR queue IN
    (
        SELECT queue FROM storeside.events
        WHERE has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1))
        UNION ALL
        SELECT queue FROM storeside.event_batches
        WHERE has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1))
    ))
GROUP BY queue
ORDER BY recorded_ms DESC, queue
LIMIT {limit:UInt32}
