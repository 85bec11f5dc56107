-- The objects that own results which another listed object would overwrite: the ledger records them as done, from the same
-- source, with such a result. A row has the time of the outcome as its version, and the prefix of the result as its reason.
-- The name of one of several results does not follow from that of its object, so it has a reason that no prefix equals.
INSERT INTO storeside.listings (job, side, object, destination_object, version, reason)
SELECT
    {job:String}, 'claimed', if(result_of = '', objects.object, result_of), destination_object, toString(recorded_at),
    if(result_of = '', prepend, '/')
FROM storeside.objects FINAL
WHERE source = {source:String} AND destination = {destination:String} AND status = 'done' AND destination_object IN
(
    SELECT s.destination_object
    FROM
    (
        -- without FINAL, it may find too many names, which are ruled out above
        SELECT if(result_of = '', objects.object, result_of) AS object, destination_object FROM storeside.objects
        WHERE source = {source:String} AND destination = {destination:String} AND status = 'done'
    ) AS o
    INNER JOIN
    (
        SELECT object, destination_object FROM storeside.listings
        WHERE job = {job:String} AND side = 'source' AND destination_object != ''
    ) AS s ON s.destination_object = o.destination_object
    WHERE s.object != o.object
)
SETTINGS join_algorithm = 'grace_hash', async_insert = 0
