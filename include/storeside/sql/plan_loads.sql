-- Plans the listed objects whose version is not loaded, in batches of a given number of bytes. A small object counts
-- as at least the batch's bytes divided by its maximum number of objects. Objects that ClickHouse cannot address, and
-- files whose rows differ from their content, have separate batches. An object that S3 denied or could not serve for a time, or that was deleted or overwritten after it
-- was listed, has not failed for good: credentials are renewed, policies are corrected, servers recover, and the same
-- content may return. An object that failed for good under other options is tried again, too.
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
        {push:Bool} OR match(key, {wild:String}) OR match(etag, {edited:String}) AS pushed,
        greatest(size, intDiv({batch_bytes:UInt64}, {batch_objects:UInt64})) AS weight
    FROM storeside.load_listings AS l
    WHERE transfer = {transfer:String} AND match(key, {regex:String}) AND NOT match(key, {markers:String})
        AND NOT (size = 0 AND endsWith(key, '/'))
        AND parseDateTime64BestEffortOrZero(l.modified, 3) >= fromUnixTimestamp64Milli({modified_from:Int64})
        AND (key, version) NOT IN
        (
            SELECT key, version FROM storeside.loads FINAL
            WHERE destination = {destination:String} AND bucket = {bucket:String}
                AND (
                    state = 'loaded'
                    OR state = 'failed' AND kind = 'object' AND run_id != {run_id:String} AND NOT {retry_failed:Bool}
                        AND options IN ('', {options:String})
                )
        )
)
SETTINGS async_insert = 0
