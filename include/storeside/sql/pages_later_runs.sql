-- Later runs of a bucket pair, or later loads of a bucket into a table: they replaced the rows of `storeside.objects`
-- and `storeside.loads` for the objects that they processed.
SELECT run_id
FROM storeside.runs FINAL
WHERE if({is_load:Bool}, startsWith(source, {source:String}), source = {source:String}) AND destination = {destination:String} AND run_id != {run:String}
    AND done + failed > 0 AND toUnixTimestamp64Milli(recorded_at) > {after_ms:Int64}
    AND ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
ORDER BY recorded_at
LIMIT 5
