-- The key after which a listing has all new objects, if new keys sort after older ones; empty if there is none.
-- Only keys that the transfer selects count, because all keys of another task in the same table may sort after them.
WITH
    known AS
    (
        SELECT key, load_id, state, kind, modified, recorded_at FROM storeside.loads FINAL
        WHERE destination = {destination:String} AND bucket = {bucket:String}
            AND startsWith(key, {prefix:String}) AND match(key, {regex:String})
    ),
    -- Objects that runs planned but did not process, and objects that could not be read at the time. An object that no
    -- longer exists gets no other outcome, so its failure counts for 35 days of later runs.
    undone AS
    (
        SELECT key FROM storeside.load_plan
        WHERE load_id = sipHash64({destination:String}, {bucket:String}, key, version)
            AND startsWith(key, {prefix:String}) AND match(key, {regex:String})
            AND load_id NOT IN (SELECT load_id FROM known WHERE state IN ('loaded', 'replaced', 'failed'))
        UNION ALL
        SELECT key FROM known
        WHERE state = 'publishing'
            OR state = 'failed' AND kind != 'object'
                AND recorded_at > (SELECT max(recorded_at) FROM known) - INTERVAL 35 DAY
    ),
    (SELECT minOrNull(key) FROM undone) AS first
SELECT max(key)
FROM known
WHERE modified <= (SELECT max(modified) FROM known) - toIntervalMillisecond({overlap:UInt64})
    AND (first IS NULL OR key < first)
