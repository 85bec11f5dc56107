-- Listed objects whose version is not in the ledger, in batches of so many bytes. Small objects weigh as much as their
-- share of a batch's most objects; those that ClickHouse cannot address have batches of their own. What S3 has denied,
-- or could not be read for a while, is not failed for good: credentials expire, policies are mended, servers come back.
INSERT INTO storeside.load_plan (transfer, batch, pushed, key, version, size, modified, load_id)
SELECT
    {transfer:String},
    2 * intDiv(sum(weight) OVER (PARTITION BY pushed ORDER BY key ROWS UNBOUNDED PRECEDING) - weight, {batch_bytes:UInt64}) + pushed,
    pushed, key, version, size, modified,
    sipHash64({destination:String}, {bucket:String}, key, version)
FROM
(
    SELECT
        key, size,
        parseDateTime64BestEffortOrZero(l.modified, 3) AS modified,
        etag AS version,
        {push:Bool} OR match(key, {wild:String}) AS pushed,
        greatest(size, intDiv({batch_bytes:UInt64}, {batch_objects:UInt64})) AS weight
    FROM storeside.load_listings AS l
    WHERE transfer = {transfer:String} AND match(key, {regex:String}) AND NOT (size = 0 AND endsWith(key, '/'))
        AND (key, version) NOT IN
        (
            SELECT key, version FROM storeside.loads FINAL
            WHERE destination = {destination:String} AND bucket = {bucket:String}
                AND (
                    state = 'loaded'
                    OR state = 'failed' AND run_id != {run_id:String} AND NOT {retry_failed:Bool}
                        AND NOT arrayExists(begin -> startsWith(reason, begin), {passing:Array(String)})
                )
        )
)
SETTINGS async_insert = 0
