-- Results that existed before a job ran and do not belong to the current objects. A result that arrived together with
-- its object counts only if the ledger records that this run made the object, with its current size. If a sidecar was
-- stored but its object could not be delivered, an unrelated object has that name.
INSERT INTO storeside.listings (job, side, destination_object, size, version)
SELECT {job:String}, 'before', r.destination_object, r.size, r.version
FROM (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'after') AS r
LEFT JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'source') AS s
    ON s.destination_object = r.destination_object
LEFT JOIN
(
    SELECT destination_object, bytes_out FROM storeside.objects FINAL
    WHERE destination = {source:String} AND run_id = {run_id:String} AND status = 'done'
) AS m ON m.destination_object = s.object
WHERE s.object = '' OR m.destination_object = '' OR m.bytes_out != s.size
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0, async_insert = 0
