-- Records members that failed or were left out in an earlier run as done if this run made their shard's result with them.
INSERT INTO storeside.objects
    (source, destination, prepend, object, version, effect, destination_object, status, reason, bytes_in, bytes_out, run_id)
SELECT {source:String}, {destination:String}, {prepend:String}, o.object, r.version, {effect:String}, o.destination_object, 'done', '', 0, 0, {run_id:String}
FROM
(
    SELECT object, destination_object
    FROM storeside.objects FINAL
    WHERE source = {source:String} AND destination = {destination:String} AND status IN ('failed', 'left_out')
        AND (prepend = {prepend:String} OR prepend = '' AND startsWith(destination_object, {prepend:String}))
) AS o
INNER JOIN (SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String}) WHERE fresh) AS r
    ON r.destination_object = o.destination_object
WHERE startsWith(o.object, concat(r.object, '/'))
    AND o.object NOT IN (SELECT object FROM storeside.job_failed_members(job = {job:String}, effect = {effect:String}))
SETTINGS join_algorithm = 'grace_hash', async_insert = 0
