-- Results whose objects were not transformed or copied in the planned version. The copy in the cluster has the version that
-- AIStore read. Without such a copy, or if its version is unknown, AIStore read the object from its bucket, where it then
-- still has the version that was planned; with `by_now`, AIStore read each object there.
INSERT INTO storeside.listings (job, side, object, reason)
SELECT {job:String}, 'changed', r.object, {reason:String}
FROM (SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String}) WHERE fresh) AS r
LEFT JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'held') AS h ON h.object = r.object
LEFT JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'now') AS n ON n.object = r.object
WHERE if(
    h.version = '' OR {by_now:Bool}, n.object = '' OR n.version != r.version
        OR (h.object != '' AND NOT {by_now:Bool} AND h.size != r.size),
    if(r.version = '', h.size != r.size, NOT has(splitByChar('\n', h.version), r.version))
)
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0, async_insert = 0
