-- The DAGs that have moved data.
SELECT DISTINCT dag_id
FROM storeside.runs
WHERE dag_id != '' AND ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
ORDER BY dag_id
LIMIT 500
