-- Recordings of these events that are loaded, or failed for good (with the reason), in the event's version or a later
-- one. A recording that is uploaded again unchanged is not retried: earlier failures of the copied version count.
-- The external table `wanted` has the events.
WITH places AS
(
    -- the bucket, and the destinations of copies of its objects
    SELECT {bucket:String} AS place
    UNION DISTINCT
    SELECT destination FROM storeside.objects WHERE source = {bucket:String} AND object IN (SELECT key FROM wanted)
)
SELECT
    e.n,
    if(loaded.key != '' AND (loaded.version = e.etag OR loaded.at > e.happened), 'loaded', 'failed') AS state,
    if(state = 'failed', failed.reason, '')
FROM
(
    SELECT n, key, etag, toDateTime64(at, 3) AS happened FROM wanted
) AS e
LEFT JOIN
(
    SELECT source_object AS key, argMax(source_version, loaded_at) AS version, max(loaded_at) AS at
    FROM speech.manifest
    WHERE source_bucket = {bucket:String} AND source_object IN (SELECT key FROM wanted)
    GROUP BY key
) AS loaded ON loaded.key = e.key
LEFT JOIN
(
    -- a failure of the object, or of a result made from it, in the chain of buckets that begins with its bucket
    SELECT key, max(recorded_at) AS at, argMax(reason, recorded_at) AS reason
    FROM
    (
        SELECT object AS key, recorded_at, reason FROM storeside.objects FINAL
        WHERE object IN (SELECT key FROM wanted) AND status = 'failed' AND source IN (SELECT place FROM places)
        UNION ALL
        SELECT t.object, f.recorded_at, f.reason
        FROM storeside.objects AS t FINAL
        INNER JOIN storeside.objects AS f FINAL ON f.source = t.destination AND f.object = t.destination_object
        WHERE t.object IN (SELECT key FROM wanted) AND f.status = 'failed' AND t.source IN (SELECT place FROM places)
    )
    GROUP BY key
) AS failed ON failed.key = e.key
LEFT JOIN
(
    SELECT object AS key, groupArray((version, recorded_at)) AS copies
    FROM storeside.objects FINAL
    WHERE source = {bucket:String} AND object IN (SELECT key FROM wanted)
    GROUP BY key
) AS copied ON copied.key = e.key
WHERE (loaded.key != '' AND (loaded.version = e.etag OR loaded.at > e.happened))
    OR (failed.key != '' AND (
        failed.at > e.happened
        OR arrayExists(copy -> copy.1 = e.etag AND copy.1 != '' AND failed.at >= copy.2, copied.copies)
    ))
SETTINGS join_use_nulls = 0
