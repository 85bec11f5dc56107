-- The first failures of a run among the objects that a job listed.
SELECT o.object, o.reason
FROM
(
    SELECT object, reason
    FROM storeside.objects FINAL
    WHERE source = {source:String} AND destination = {destination:String} AND prepend = {prepend:String} AND run_id = {run_id:String}
        AND status = 'failed'
) AS o
INNER JOIN (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'source') AS l
    ON l.object = o.object
ORDER BY o.object
LIMIT {limit:UInt32}
SETTINGS join_algorithm = 'grace_hash'
