-- The objects among these that a transform into {destination:String} has done, and whose results a load into
-- {table:String} has recorded, or that one of the two failed, with the reason, or that the transform left out. Objects count in the event's version or
-- later, as in events_transformed.sql, and results in the version that the transform made. The external table `wanted`
-- has the events.
WITH made AS
(
    SELECT
        object, version, toString(status) AS status, reason, listed_at, destination_object,
        -- a load has no version for an object of AIStore of which only the size is known
        if(result_version = concat('/', toString(bytes_out)), '', result_version) AS result_version
    FROM storeside.objects FINAL
    WHERE source = {bucket:String} AND destination = {destination:String} AND object IN (SELECT key FROM wanted)
    ORDER BY recorded_at DESC
    LIMIT 1 BY object
)
SELECT
    e.n,
    multiIf(
        o.status = 'failed', 'failed', l.state = 'failed' AND l.kind = 'object', 'failed', l.state = 'failed', 'undone',
        'loaded'
    ) AS outcome,
    multiIf(o.status = 'failed', o.reason, l.state = 'failed', l.reason, '')
FROM
(
    SELECT n, key, etag, toDateTime64(at, 3) AS happened FROM wanted
) AS e
INNER JOIN made AS o ON o.object = e.key
LEFT JOIN
(
    SELECT key, version, toString(state) AS state, toString(kind) AS kind, reason FROM storeside.loads FINAL
    WHERE destination = {table:String} AND bucket = {destination:String}
        AND key IN (SELECT destination_object FROM made) AND state != 'publishing'
) AS l ON l.key = o.destination_object AND l.version = o.result_version
WHERE (o.listed_at > e.happened OR (o.version = e.etag AND e.etag != '')) AND (o.status != 'done' OR l.state != '')
SETTINGS join_use_nulls = 0
