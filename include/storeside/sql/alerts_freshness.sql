-- Hours since rows were last loaded or published into a table, and that time; no row if there were never any.
SELECT (toFloat64(now64(3)) - toFloat64(max(at))) / 3600 AS hours, toUnixTimestamp64Milli(max(at)) AS ms
FROM
(
    SELECT toDateTime64(recorded_at, 3) AS at FROM storeside.loads
    WHERE destination = {table:String} AND state = 'loaded' AND rows > 0
    UNION ALL
    SELECT recorded_at AS at FROM storeside.runs
    WHERE destination = concat('clickhouse://', {table:String}) AND kind = 'publish' AND state != 'running' AND done > 0
)
HAVING count() > 0
