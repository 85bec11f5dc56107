-- The results of objects that a job left out: the destination still lists results that earlier runs made of earlier
-- versions of these objects, or with another transformer. Other objects of these names are not Storeside's.
SELECT DISTINCT r.destination_object
FROM (SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String}) WHERE NOT fresh) AS r
INNER JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'left_out') AS e ON e.object = r.object
INNER JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'after') AS a
    ON a.destination_object = r.destination_object
INNER JOIN
(
    SELECT object, destination_object FROM storeside.objects
    WHERE source = {source:String} AND destination = {destination:String}
) AS o ON o.object = r.object AND o.destination_object = r.destination_object
WHERE r.destination_object > {after:String}
ORDER BY r.destination_object
LIMIT {limit:UInt32}
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0
