-- Depth and age of a queue over the last `hours` hours: the maximum of each time slice, then the current values.
SELECT * EXCEPT is_now
FROM
(
    SELECT
        toUnixTimestamp(toStartOfInterval(recorded_at, toIntervalSecond({slice:UInt32}))) AS at,
        max(visible) AS waiting, max(in_flight) AS flying, max(dead) AS dead_letters, max(oldest_seconds) AS age,
        0 AS is_now
    FROM storeside.queue_depths
    WHERE queue = {queue:String} AND recorded_at > now64(3) - toIntervalHour({hours:UInt32})
    GROUP BY at
    UNION ALL
    SELECT
        toUnixTimestamp(max(recorded_at)) AS at, argMax(visible, recorded_at), argMax(in_flight, recorded_at),
        argMax(dead, recorded_at), argMax(oldest_seconds, recorded_at), 1
    FROM storeside.queue_depths
    WHERE queue = {queue:String} AND recorded_at > now64(3) - toIntervalHour({hours:UInt32})
    HAVING count() > 0
)
ORDER BY at, is_now
LIMIT 200
