-- Objects that would overwrite another object's result are failures with that reason.
INSERT INTO storeside.objects
    (source, destination, object, version, effect, destination_object, status, reason, bytes_in, bytes_out, run_id)
SELECT
    {source:String}, {destination:String}, c.object, c.version, {effect:String}, c.destination_object, 'failed',
    concat('its result would be named ', c.destination_object, ', like that of ', w.winner), c.size, 0, {run_id:String}
FROM (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'collision') AS c
INNER JOIN
(
    SELECT destination_object, min(object) AS winner
    FROM storeside.listings
    WHERE job = {job:String} AND side = 'source'
    GROUP BY destination_object
) AS w ON w.destination_object = c.destination_object
SETTINGS join_algorithm = 'grace_hash', async_insert = 0
