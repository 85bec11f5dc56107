-- Records objects that were replaced by their results as done in their current version, so that no run transforms a
-- result again. Objects without a result keep their recorded outcome.
INSERT INTO storeside.objects
    (source, destination, prepend, object, version, effect, destination_object, status, reason, bytes_in, bytes_out,
    result_version, listed_at, run_id, options)
SELECT
    {source:String}, {destination:String}, {prepend:String}, r.object, n.version, {effect:String}, r.destination_object, 'done', '',
    r.size, n.size, n.version,
    (SELECT min(listed_at) FROM storeside.listings WHERE job = {job:String} AND side = 'listing'), {run_id:String}, {options:String}
FROM (SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String}) WHERE fresh) AS r
INNER JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'now') AS n
    ON n.destination_object = r.destination_object
WHERE n.size = r.result_size AND splitByChar('/', n.version)[-1] = splitByChar('/', r.result_version)[-1]
SETTINGS join_algorithm = 'grace_hash', async_insert = 0
