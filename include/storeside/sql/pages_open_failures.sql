-- Objects of each DAG that failed in the last `days` days and that no run has processed since, and the newest run that
-- they failed in. The newest failures are looked at, up to `most`.
WITH recent AS
(
    SELECT run_id, source, destination, object, version, recorded_at
    FROM storeside.failures FINAL
    WHERE state = 'failed' AND recorded_at > now64(3) - toIntervalDay({days:UInt32})
        AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
    ORDER BY recorded_at DESC
    LIMIT {most:UInt32}
)
SELECT
    substring(run_id, 1, position(run_id, '/') - 1) AS dag_id, uniqExact(source, destination, object) AS objects,
    argMax(run_id, recorded_at) AS newest_run
FROM recent
WHERE (source, destination, object) NOT IN
(
    SELECT source, destination, object
    FROM storeside.objects FINAL
    WHERE status = 'done' AND (source, destination, object) IN (SELECT source, destination, object FROM recent)
)
    AND (destination, source, object, version) NOT IN
    (
        SELECT concat('clickhouse://', destination), if(startsWith(bucket, 'ais://'), bucket, concat('s3://', bucket)), key, version
        FROM storeside.loads FINAL
        WHERE state != 'failed' AND (destination, bucket, key, version) IN
        (
            SELECT substring(destination, 14), if(startsWith(source, 'ais://'), source, substring(source, 6)), object, version FROM recent
            WHERE startsWith(destination, 'clickhouse://')
        )
    )
GROUP BY dag_id
