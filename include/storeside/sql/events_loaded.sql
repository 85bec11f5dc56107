-- The objects among these of which a load into {table:String} has recorded the current version, with its failure if
-- there is one. The external table `wanted` has the events with the current versions.
SELECT
    e.n,
    multiIf(l.state != 'failed', 'loaded', l.kind = 'object', 'failed', 'undone') AS outcome,
    if(l.state = 'failed', l.reason, '')
FROM wanted AS e
INNER JOIN
(
    SELECT key, version, toString(state) AS state, toString(kind) AS kind, reason FROM storeside.loads FINAL
    WHERE destination = {table:String} AND bucket = substring({bucket:String}, 6) -- without s3://
        AND key IN (SELECT key FROM wanted) AND state != 'publishing'
) AS l ON l.key = e.key AND l.version = e.etag
