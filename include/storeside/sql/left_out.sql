-- How many of the objects that a job listed are left out in their listed version, now or by an earlier run with the same
-- effect: their number, and the most frequent reasons with the number of each.
SELECT reason, count() AS objects, sum(count()) OVER () AS total
FROM
(
    SELECT object, version, reason
    FROM storeside.objects FINAL
    WHERE source = {source:String} AND destination = {destination:String} AND prepend = {prepend:String}
        AND effect = {effect:String} AND status = 'left_out'
) AS o
INNER JOIN (SELECT object, version FROM storeside.listings WHERE job = {job:String} AND side = 'source') AS l
    ON l.object = o.object AND l.version = o.version
GROUP BY reason
ORDER BY objects DESC, reason
LIMIT {limit:UInt32}
SETTINGS join_algorithm = 'grace_hash'
