-- Buckets and tables of recent movements, as suggestions for filters.
SELECT DISTINCT place
FROM
(
    SELECT source, destination
    FROM storeside.runs
    WHERE ({all_dags:Bool} OR has({dags:Array(String)}, dag_id)) AND recorded_at > now64(3) - toIntervalDay(90)
    ORDER BY recorded_at DESC
    LIMIT 20000
)
ARRAY JOIN [source, destination] AS place
WHERE place != ''
ORDER BY place
LIMIT 200
