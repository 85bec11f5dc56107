-- Pending objects that already exist at the destination, with the same size and a version that both endpoints compute
-- from the content alone (an MD5, or the MD5 of the parts' MD5s).
INSERT INTO storeside.listings (job, side, object, destination_object, size, version)
SELECT {job:String}, 'adopted', p.object, p.destination_object, p.size, d.version
FROM (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'pending') AS p
INNER JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'before') AS d
    ON d.destination_object = p.destination_object
WHERE d.size = p.size AND d.version = p.version AND match(p.version, '^[0-9a-f]{32}(-[0-9]+)?$')
SETTINGS join_algorithm = 'grace_hash', async_insert = 0
