-- As events_results_loaded.sql, with one more transform: the results in {destination:String} are transformed into
-- {facts:String}, from which the load into {table:String} reads. A result counts in the version that the transform
-- before it made. The external table `wanted` has the events.
WITH
    made AS
    (
        SELECT object, version, toString(status) AS status, reason, listed_at, destination_object, result_version
        FROM storeside.objects FINAL
        WHERE source = {bucket:String} AND destination = {destination:String} AND object IN (SELECT key FROM wanted)
    ),
    described AS
    (
        SELECT
            object, version, toString(status) AS status, reason, destination_object,
            -- a load has no version for an object of AIStore of which only the size is known
            if(result_version = concat('/', toString(bytes_out)), '', result_version) AS result_version
        FROM storeside.objects FINAL
        WHERE source = {destination:String} AND destination = {facts:String}
            AND object IN (SELECT destination_object FROM made)
    )
SELECT
    e.n,
    multiIf(
        o.status = 'failed', 'failed', d.status = 'failed', 'failed',
        l.state = 'failed' AND l.kind = 'object', 'failed', l.state = 'failed', 'undone', 'loaded'
    ) AS outcome,
    multiIf(o.status = 'failed', o.reason, d.status = 'failed', d.reason, l.state = 'failed', l.reason, '')
FROM
(
    SELECT n, key, etag, toDateTime64(at, 3) AS happened FROM wanted
) AS e
INNER JOIN made AS o ON o.object = e.key
LEFT JOIN described AS d ON d.object = o.destination_object AND d.version = o.result_version
LEFT JOIN
(
    SELECT key, version, toString(state) AS state, toString(kind) AS kind, reason FROM storeside.loads FINAL
    WHERE destination = {table:String} AND bucket = {facts:String}
        AND key IN (SELECT destination_object FROM described) AND state != 'publishing'
) AS l ON l.key = d.destination_object AND l.version = d.result_version AND d.status = 'done'
WHERE (o.listed_at > e.happened OR (o.version = e.etag AND e.etag != ''))
    AND (o.status != 'done' OR d.status IN ('failed', 'left_out') OR l.state != '')
SETTINGS join_use_nulls = 0
