-- Which of these objects still have no result because they failed for good, and who accepted that.
SELECT
    object,
    max(status = 'failed' AND version != '' AND objects.accepted_by = '') AS is_open,
    argMax(objects.accepted_by, accepted_at) AS accepted_by,
    toUnixTimestamp64Milli(max(accepted_at)) AS accepted_ms
FROM storeside.objects FINAL
WHERE source = {source:String} AND destination = {destination:String} AND prepend = {prepend:String}
    AND object IN {names:Array(String)}
    AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
GROUP BY object
