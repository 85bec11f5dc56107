-- Which of these objects are still not loaded because a version of them failed for good, and who accepted that.
SELECT
    key AS object,
    max(state = 'failed' AND kind = 'object' AND loads.accepted_by = '') AS is_open,
    argMax(loads.accepted_by, accepted_at) AS accepted_by,
    toUnixTimestamp64Milli(max(accepted_at)) AS accepted_ms
FROM storeside.loads FINAL
WHERE destination = {destination:String} AND bucket = {bucket:String} AND key IN {names:Array(String)}
    AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
GROUP BY key
