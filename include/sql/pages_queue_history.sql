-- Depth and age of a queue over the last so many hours, the highest of each slice.
SELECT
    toUnixTimestamp(toStartOfInterval(recorded_at, toIntervalSecond({slice:UInt32}))) AS at,
    max(visible) AS waiting, max(in_flight) AS flying, max(dead) AS dead_letters, max(oldest_seconds) AS age
FROM storeside.queue_depths
WHERE queue = {queue:String} AND recorded_at > now64(3) - toIntervalHour({hours:UInt32})
GROUP BY at
ORDER BY at
LIMIT 200
