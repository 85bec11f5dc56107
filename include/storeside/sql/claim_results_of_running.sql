-- The results that jobs of other source buckets are to make under the names of this job's results: their plans are stored,
-- and were made within a day, because a killed job leaves its plan. A row has the object with its bucket, and the
-- reason `running`. Copies of the same content overwrite nothing.
INSERT INTO storeside.listings (job, side, object, destination_object, reason)
WITH running AS
(
    SELECT job, object AS source, reason AS effect FROM storeside.listings
    WHERE side = 'planned' AND destination_object = {destination:String}
        AND object NOT IN ({source:String}, {destination:String}) AND {source:String} != {destination:String}
        AND listed_at > now() - INTERVAL 1 DAY
)
SELECT {job:String}, 'rival', min(concat(o.source, '/', p.object)), p.destination_object, 'running'
FROM running AS o
INNER JOIN
(
    SELECT job, object, destination_object, size, version FROM storeside.listings
    WHERE side = 'pending' AND job IN (SELECT job FROM running)
) AS p
    ON p.job = o.job
INNER JOIN
(
    SELECT destination_object, size, version FROM storeside.listings
    WHERE job = {job:String} AND side = 'source' AND destination_object != ''
) AS s ON s.destination_object = p.destination_object
WHERE p.destination_object NOT IN (SELECT destination_object FROM storeside.listings WHERE job = {job:String} AND side = 'rival')
    AND NOT (
        {effect:String} = '' AND o.effect = '' AND p.size = s.size
        AND splitByChar('/', p.version)[-1] = splitByChar('/', s.version)[-1]
        AND splitByChar('/', s.version)[-1] NOT IN ('', toString(s.size))
    )
GROUP BY p.destination_object
SETTINGS join_algorithm = 'grace_hash', async_insert = 0
