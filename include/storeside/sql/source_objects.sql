-- Loaded objects of a source whose action is not done yet, in the order of their keys, after a key and version; the last
-- column is the load of an earlier run, or of an earlier try of this run, whose rows may have been removed since, or 0.
-- A handled object is due again if it is in the bucket again with the loaded version: the listing has it, or the list of
-- keys, which the engine writes into both conditions.
SELECT
    l.key, l.version, h.state, h.place, h.reason,
    if(l.rows = 0 OR l.run_id = {run_id:String} AND l.recorded_at >= (
        SELECT if(count() = 0, now64(6), min(planned_at)) FROM storeside.load_plan WHERE transfer = {transfer:String}
    ), 0, l.load_id)
FROM
(
    SELECT key, version, load_id, rows, run_id, recorded_at FROM storeside.loads FINAL
    WHERE destination = {destination:String} AND bucket = {bucket:String} AND key >= {key:String} AND (key, version) > ({key:String}, {version:String})
        AND startsWith(key, {prefix:String}) AND match(key, {regex:String})
        AND state = 'loaded' AND toString(after_load) = {action:String} AND (rejected = 0 OR {rejected:Bool})
        AND ({all:Bool} OR key IN (''))
) AS l
LEFT JOIN
(
    SELECT key, version, toString(state) AS state, place, reason FROM storeside.source_objects FINAL
    WHERE destination = {destination:String} AND bucket = {bucket:String} AND key >= {key:String} AND toString(action) = {action:String}
        AND ({all:Bool} OR key IN (''))
) AS h ON h.key = l.key AND h.version = l.version
WHERE h.state NOT IN ('done', 'changed')
    OR {action:String} != 'tag' AND (
        NOT {all:Bool}
        OR (l.key, l.version) IN (SELECT key, etag FROM storeside.load_listings WHERE transfer = {transfer:String})
    )
ORDER BY l.key, l.version
LIMIT {limit:UInt32}
SETTINGS join_use_nulls = 0
