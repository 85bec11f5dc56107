-- The newest depth of every queue.
SELECT
    queue, argMax(visible, recorded_at) AS visible, argMax(in_flight, recorded_at) AS in_flight,
    argMax(delayed, recorded_at) AS delayed, argMax(dead, recorded_at) AS dead,
    argMax(oldest_seconds, recorded_at) AS oldest_seconds,
    toUnixTimestamp64Milli(max(recorded_at)) AS recorded_ms
FROM storeside.queue_depths
GROUP BY queue
ORDER BY queue
LIMIT 50
