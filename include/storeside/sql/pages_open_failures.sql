-- Objects of each DAG that failed in the last `days` days and that no run has processed since, and the newest run that
-- they failed in. Accepted failures do not count. The newest failures of each DAG are looked at, up to `most`; `more` is
-- true if a DAG may have others.
-- The newest row of an object counts; FINAL, and a comparison of whole keys with each row, would take twice as long. An
-- object that failed to be loaded counts as processed when any version of it is loaded: a user corrects it with a new one.
WITH recent AS
(
    SELECT
        substring(run_id, 1, position(run_id, '/') - 1) AS dag_id, run_id, source, destination, prepend, object,
        recorded_at
    FROM storeside.failures FINAL
    WHERE state = 'failed' AND recorded_at > now64(3) - toIntervalDay({days:UInt32})
        AND ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
        AND ({dag:String} = '' OR positionCaseInsensitiveUTF8(dag_id, {dag:String}) > 0)
    ORDER BY recorded_at DESC
    LIMIT {most:UInt32} BY dag_id
    LIMIT 10 * {most:UInt32}
)
SELECT
    dag_id, uniqExact(source, destination, object) AS objects, argMax(run_id, recorded_at) AS newest_run,
    dag_id IN (SELECT dag_id FROM recent GROUP BY dag_id HAVING count() = {most:UInt32}) AS more
FROM recent
WHERE (source, destination, object, prepend) NOT IN
(
    SELECT source, destination, object, prepend
    FROM storeside.objects
    WHERE object IN (SELECT object FROM recent)
        AND (source, destination, object, prepend) IN (SELECT source, destination, object, prepend FROM recent)
    GROUP BY source, destination, object, prepend
    HAVING argMax(status != 'failed' OR accepted_by != '', objects.recorded_at)
)
    AND (destination, source, object) NOT IN
    (
        SELECT concat('clickhouse://', destination), if(startsWith(bucket, 'ais://'), bucket, concat('s3://', bucket)), key
        FROM storeside.loads
        WHERE key IN (SELECT object FROM recent) AND (destination, bucket, key) IN
        (
            SELECT substring(destination, 14), if(startsWith(source, 'ais://'), source, substring(source, 6)), object
            FROM recent
            WHERE startsWith(destination, 'clickhouse://')
        )
        GROUP BY destination, bucket, key
        HAVING argMax(state != 'failed' OR accepted_by != '', loads.recorded_at)
    )
GROUP BY dag_id
