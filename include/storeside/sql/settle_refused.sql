-- Records objects that the plan refused for their names as failed, with the reason.
INSERT INTO storeside.objects
    (source, destination, prepend, object, version, effect, destination_object, status, reason, bytes_in, bytes_out,
    listed_at, run_id, options)
SELECT
    {source:String}, {destination:String}, {prepend:String}, object, version, {effect:String}, destination_object, 'failed', reason,
    size, 0, (SELECT min(listed_at) FROM storeside.listings WHERE job = {job:String} AND side = 'listing'), {run_id:String}, {options:String}
FROM storeside.listings
WHERE job = {job:String} AND side = 'refused'
SETTINGS async_insert = 0
