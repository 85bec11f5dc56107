-- Of the results that were there before a job ran, those that say nothing of the objects as they are now. A result
-- that came along with its object counts only when the ledger has the object as made in this run, and of the size
-- that it has now: where a sidecar was stored and its object could not be delivered, another object has that name.
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
