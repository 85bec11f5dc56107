-- The tables into which versions of an object were loaded, or were to be loaded.
SELECT
    destination, version, toString(load_id) AS load_id, toString(state) AS status, reason, rows, rejected, bytes,
    run_id, toUnixTimestamp64Milli(toDateTime64(recorded_at, 3)) AS recorded_ms
FROM storeside.loads FINAL
WHERE bucket = {bucket:String} AND key = {object:String}
    AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
ORDER BY recorded_ms DESC
LIMIT 20
