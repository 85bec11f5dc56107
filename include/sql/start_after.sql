-- The key after which new objects of a bucket are to be looked for, where keys only ever grow; empty when none is.
-- Only keys that the transfer is about count: those of another task into the same table may sort behind all of them.
WITH
    known AS
    (
        SELECT key, load_id, state, reason, modified FROM storeside.loads FINAL
        WHERE destination = {destination:String} AND bucket = {bucket:String}
            AND startsWith(key, {prefix:String}) AND match(key, {regex:String})
    ),
    -- what runs have planned and not come to, and what they could not read for now
    undone AS
    (
        SELECT key FROM storeside.load_plan
        WHERE load_id = sipHash64({destination:String}, {bucket:String}, key, version)
            AND startsWith(key, {prefix:String}) AND match(key, {regex:String})
            AND load_id NOT IN (SELECT load_id FROM known WHERE state IN ('loaded', 'replaced', 'failed'))
        UNION ALL
        SELECT key FROM known
        WHERE state = 'publishing'
            OR state = 'failed' AND arrayExists(begin -> startsWith(reason, begin), {passing:Array(String)})
    ),
    (SELECT minOrNull(key) FROM undone) AS first
SELECT max(key)
FROM known
WHERE modified <= (SELECT max(modified) FROM known) - toIntervalMillisecond({overlap:UInt64})
    AND (first IS NULL OR key < first)
