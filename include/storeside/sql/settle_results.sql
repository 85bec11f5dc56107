-- Records the results of objects with several results: those of a complete list as done, and obsolete ones as left out.
INSERT INTO storeside.objects
    (source, destination, prepend, object, result_of, version, effect, destination_object, status, reason, bytes_in,
    bytes_out, result_version, listed_at, run_id, options)
SELECT
    {source:String}, {destination:String}, {prepend:String},
    concat(object, '/', splitByChar('/', destination_object)[-1]), object, version, {effect:String}, destination_object,
    if(reason = '', 'done', 'left_out'), reason, 0, size, result_version,
    (SELECT min(listed_at) FROM storeside.listings WHERE job = {job:String} AND side = 'listing'), {run_id:String}, {options:String}
FROM
(
    SELECT DISTINCT n.object, n.destination_object, r.version AS version, '' AS reason, n.size, n.version AS result_version
    FROM
    (
        SELECT object, destination_object, size, version, reason FROM storeside.listings
        WHERE job = {job:String} AND side = 'announced' AND destination_object != ''
    ) AS n
    INNER JOIN (SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String}) WHERE fresh) AS r
        ON r.object = n.object AND r.result_version = n.reason
    UNION ALL
    SELECT object, destination_object, version, reason, 0, ''
    FROM storeside.listings
    WHERE job = {job:String} AND side = 'obsolete' AND reason != ''
)
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0, async_insert = 0
