-- Lists of the results of pending objects on one side of a job's listings, except for those that were read before, and those
-- whose results the ledger has.
SELECT p.object, p.destination_object, l.size, l.version
FROM (SELECT object, destination_object FROM storeside.listings WHERE job = {job:String} AND side = 'pending') AS p
INNER JOIN (SELECT destination_object, size, version FROM storeside.listings WHERE job = {job:String} AND side = {side:String}) AS l
    ON l.destination_object = p.destination_object
WHERE p.object > {after:String} AND l.size BETWEEN 1 AND {largest:UInt64}
    AND (p.object, l.version) NOT IN
    (
        SELECT object, reason FROM storeside.listings
        WHERE job = {job:String} AND side = 'announced' AND destination_object = ''
    )
    AND (p.object, l.version) NOT IN
    (
        SELECT object, result_version FROM storeside.objects FINAL
        WHERE source = {source:String} AND destination = {destination:String} AND prepend = {prepend:String}
            AND status = 'done' AND result_of = ''
    )
ORDER BY p.object
LIMIT {limit:UInt32}
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0
