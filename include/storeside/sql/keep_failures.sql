-- Keeps the failures of a run on one pair of places, and marks as done those that a later try of the run mended. The
-- pair is as in storeside.runs: two buckets, or a bucket with a prefix and a table.
INSERT INTO storeside.failures (run_id, source, destination, prepend, object, version, state, reason, bytes, recorded_at)
SELECT {run_id:String}, source, destination, prepend, object, '', if(status = 'failed', 'failed', 'done'), reason, bytes_in, recorded_at
FROM
(
    SELECT source, destination, prepend, object, toString(status) AS status, reason, bytes_in, recorded_at
    FROM storeside.objects FINAL
    WHERE source = {source:String} AND destination = {destination:String} AND run_id = {run_id:String}
)
WHERE status = 'failed' OR (object, prepend) IN (SELECT object, prepend FROM storeside.failures WHERE run_id = {run_id:String})
UNION ALL
SELECT
    {run_id:String}, if(startsWith(bucket, 'ais://'), bucket, concat('s3://', bucket)), concat('clickhouse://', destination), '', key, version,
    if(status = 'failed', 'failed', 'done'), reason, bytes, at
FROM
(
    SELECT
        destination, bucket, key, version, toString(state) AS status, reason, bytes,
        toDateTime64(recorded_at, 3) AS at
    FROM storeside.loads FINAL
    WHERE destination = if(startsWith({destination:String}, 'clickhouse://'), substring({destination:String}, 14), '')
        AND bucket = concat(if(startsWith({source:String}, 'ais://'), 'ais://', ''), splitByChar('/', {source:String})[3])
        AND (run_id = {run_id:String} OR startsWith(run_id, concat({run_id:String}, '/')))
)
WHERE status IN ('failed', 'loaded', 'replaced')
    AND (status = 'failed' OR (key, version) IN (SELECT object, version FROM storeside.failures WHERE run_id = {run_id:String}))
SETTINGS async_insert = 0
