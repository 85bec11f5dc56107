-- The tables into which tasks loaded data in the last `days` days, the freshest first, with ClickHouse's own counts of
-- the tables that the user may see.
SELECT
    table, dags, objects, rows_loaded, objects_failed, state, loaded_ms, recorded_ms,
    if(known.seen, known.total_rows, NULL) AS rows, if(known.seen, known.total_bytes, NULL) AS bytes
FROM
(
    SELECT
        substring(destination, length('clickhouse://') + 1) AS table,
        arraySort(groupUniqArray(20)(dag_id)) AS dags,
        sum(done) AS objects,
        sum(JSONExtractUInt(detail, 'rows')) AS rows_loaded,
        sum(failed) AS objects_failed,
        argMax(toString(r.state), recorded_at) AS state,
        toUnixTimestamp64Milli(maxIf(recorded_at, done > 0)) AS loaded_ms,
        toUnixTimestamp64Milli(max(recorded_at)) AS recorded_ms
    FROM storeside.runs AS r FINAL
    WHERE ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
        AND kind IN ('load', 'events') AND startsWith(destination, 'clickhouse://') AND r.state != 'running'
        AND recorded_at > now64(3) - toIntervalDay({days:UInt32})
        AND
        (
            {text:String} = '' OR positionCaseInsensitiveUTF8(destination, {text:String}) > 0
            OR positionCaseInsensitiveUTF8(dag_id, {text:String}) > 0
        )
    GROUP BY table
    ORDER BY loaded_ms DESC, table
    LIMIT {limit:UInt32}
) AS loaded
LEFT JOIN
(
    SELECT concat(database, '.', name) AS table, total_rows, total_bytes, true AS seen
    FROM system.tables
    WHERE NOT is_temporary AND database NOT IN ('system', 'information_schema', 'INFORMATION_SCHEMA')
) AS known USING (table)
ORDER BY loaded_ms DESC, table
