-- The activity of all targets together in each second of a measurement in which all of them were sampled.
WITH
    samples AS
    (
        SELECT
            tick,
            node,
            began,
            ended,
            1000 * (read_bytes + written_bytes) / dateDiff('millisecond', began, ended) AS node_rate,
            disk_use
        FROM storeside.throughput FINAL
        WHERE measurement = {measurement:String}
    ),
    (SELECT min(began) FROM samples) AS first,
    (SELECT uniqExact(node) FROM samples) AS nodes
SELECT
    avg(dateDiff('millisecond', first, ended)) / 1000 AS at,
    sum(node_rate) AS rate,
    minOrNullArray(disk_use) AS disk_use_min,
    avgOrNullArray(disk_use) AS disk_use_mean,
    maxOrNullArray(disk_use) AS disk_use_max
FROM samples
GROUP BY tick
HAVING count() = nodes
ORDER BY tick
