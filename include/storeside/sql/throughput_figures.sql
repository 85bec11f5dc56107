-- Figures of the steady part of a measurement, from the seconds in which every target was sampled.
WITH
    all_samples AS
    (
        SELECT
            tick,
            node,
            toUnixTimestamp64Milli(ended) - toUnixTimestamp64Milli(began) AS ms,
            read_bytes + written_bytes AS bytes,
            disk_use
        FROM storeside.throughput FINAL
        WHERE measurement = {measurement:String} AND began >= {since:DateTime64(3, 'UTC')}
            AND ended <= {until:DateTime64(3, 'UTC')}
    ),
    full_ticks AS (SELECT tick FROM all_samples GROUP BY tick HAVING count() = {nodes:UInt32}),
    samples AS (SELECT * FROM all_samples WHERE tick IN (SELECT tick FROM full_ticks)),
    seconds AS (SELECT tick, sum(1000 * bytes / ms) AS rate FROM samples GROUP BY tick),
    targets AS (SELECT node, 1000 * sum(bytes) / sum(ms) AS rate FROM samples GROUP BY node),
    disks AS (SELECT arrayJoin(disk_use) AS percent FROM samples)
SELECT
    (SELECT count() FROM seconds) AS ticks,
    (SELECT ifNotFinite(avg(rate), 0) FROM seconds) AS mean,
    (SELECT max(rate) FROM seconds) AS peak,
    (SELECT ifNotFinite(100 * stddevPop(rate) / avg(rate), 0) FROM seconds) AS time_variance,
    (SELECT ifNotFinite(100 * (max(rate) - min(rate)) / avg(rate), 0) FROM targets) AS node_variance,
    (SELECT minOrNull(percent) FROM disks) AS disk_use_min,
    (SELECT avgOrNull(percent) FROM disks) AS disk_use,
    (SELECT maxOrNull(percent) FROM disks) AS disk_use_max
