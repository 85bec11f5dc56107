-- The objects among these that a transform into {destination:String} has done or left out, or that failed for good (with
-- the reason), in the event's version or later. An object that is put again unchanged keeps its version and is not
-- transformed again. A version is later if it was listed after the event. The time when it was recorded proves nothing,
-- because the object may have been overwritten meanwhile. The events are in the external table `wanted`.
SELECT
    e.n,
    if(o.status = 'failed', 'failed', 'loaded') AS state,
    if(state = 'failed', o.reason, '')
FROM
(
    SELECT n, key, etag, toDateTime64(at, 3) AS happened FROM wanted
) AS e
INNER JOIN
(
    SELECT object, version, toString(status) AS status, reason, listed_at
    FROM storeside.objects FINAL
    WHERE source = {bucket:String} AND destination = {destination:String} AND object IN (SELECT key FROM wanted)
    ORDER BY recorded_at DESC
    LIMIT 1 BY object
) AS o ON o.object = e.key
WHERE o.listed_at > e.happened OR (o.version = e.etag AND e.etag != '')
