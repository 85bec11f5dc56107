-- Objects with a new list of results that does not have all of them: the destination lists each result with the size and
-- the version that the server announced after it had stored the result, or the list does not count.
INSERT INTO storeside.listings (job, side, object)
SELECT {job:String}, 'incomplete', r.object
FROM (SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String}) WHERE fresh) AS r
LEFT JOIN
(
    SELECT
        n.object AS object, n.reason AS list_version, count() AS announced,
        countIf(a.destination_object != '' AND a.size = n.size AND n.version != '' AND a.version = n.version) AS stored
    FROM
    (
        SELECT object, destination_object, size, version, reason FROM storeside.listings
        WHERE job = {job:String} AND side = 'announced' AND destination_object != ''
    ) AS n
    LEFT JOIN
    (
        SELECT destination_object, size, version FROM storeside.listings WHERE job = {job:String} AND side = 'after'
    ) AS a ON a.destination_object = n.destination_object
    GROUP BY object, list_version
) AS t ON t.object = r.object AND t.list_version = r.result_version
WHERE t.announced = 0 OR t.stored != t.announced
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0, async_insert = 0
