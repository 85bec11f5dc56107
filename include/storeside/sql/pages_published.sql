-- Rows of the speech manifest that one run published, by bucket.
SELECT bucket, count() AS rows
FROM speech.manifest
WHERE run_id = {run:String} AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
GROUP BY bucket
ORDER BY bucket
