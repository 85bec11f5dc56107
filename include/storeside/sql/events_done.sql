-- Recordings of these events that are loaded or left out, or failed for good (with the reason), in the event's version or a later
-- one. A version is later if the bucket was listed with it after the event. The times of loads and failures prove
-- nothing, because the recording may have been overwritten meanwhile. A recording that is uploaded again unchanged is
-- not retried: earlier failures of its version count. The external table `wanted` has the events.
WITH places AS
(
    -- the bucket, and the destinations of copies of its objects
    SELECT {bucket:String} AS place
    UNION DISTINCT
    SELECT destination FROM storeside.objects WHERE source = {bucket:String} AND object IN (SELECT key FROM wanted)
),
loaded.version = e.etag AND e.etag != ''
    OR arrayExists(o -> o.version = loaded.version AND o.listed_at > e.happened, listed.outcomes) AS is_of_event,
loaded.key != '' AND is_of_event AS is_loaded
SELECT
    e.n,
    if(is_loaded OR failed.status = 'left_out', 'loaded', 'failed') AS state,
    if(state = 'failed', failed.reason, '')
FROM
(
    SELECT n, key, etag, toDateTime64(at, 3) AS happened FROM wanted
) AS e
LEFT JOIN
(
    SELECT source_object AS key, argMax(source_version, loaded_at) AS version
    FROM speech.manifest
    WHERE source_bucket = {bucket:String} AND source_object IN (SELECT key FROM wanted)
    GROUP BY key
) AS loaded ON loaded.key = e.key
LEFT JOIN
(
    -- a failure of the object, or its being left out, or that of a result made from it, in the chain of buckets that begins with its bucket
    SELECT key, max(recorded_at) AS at, argMax(reason, recorded_at) AS reason, argMax(status, recorded_at) AS status
    FROM
    (
        SELECT object AS key, recorded_at, reason, toString(status) AS status FROM storeside.objects FINAL
        WHERE object IN (SELECT key FROM wanted) AND objects.status != 'done' AND source IN (SELECT place FROM places)
        UNION ALL
        SELECT t.object, f.recorded_at, f.reason, toString(f.status)
        FROM storeside.objects AS t FINAL
        INNER JOIN storeside.objects AS f FINAL ON f.source = t.destination AND f.object = t.destination_object
        WHERE t.object IN (SELECT key FROM wanted) AND f.status != 'done' AND t.source IN (SELECT place FROM places)
    )
    GROUP BY key
) AS failed ON failed.key = e.key
LEFT JOIN
(
    SELECT
        object AS key,
        groupArray(
            CAST(
                (version, recorded_at, listed_at),
                'Tuple(version String, recorded_at DateTime64(3), listed_at DateTime64(3))'
            )
        ) AS outcomes
    FROM storeside.objects FINAL
    WHERE source = {bucket:String} AND object IN (SELECT key FROM wanted)
    GROUP BY key
) AS listed ON listed.key = e.key
WHERE is_loaded
    OR failed.key != '' AND arrayExists(
        o -> (o.version = e.etag AND e.etag != '' OR o.listed_at > e.happened) AND failed.at >= o.recorded_at,
        listed.outcomes
    )
SETTINGS join_use_nulls = 0
