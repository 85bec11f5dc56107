-- Records objects whose manifest row is in the quarantine as failed, with the expectations that they do not meet.
INSERT INTO storeside.objects
    (source, destination, prepend, object, version, effect, destination_object, status, reason, bytes_in, bytes_out,
    listed_at, run_id, options)
SELECT
    {source:String}, {destination:String}, {prepend:String}, r.object, r.version, {effect:String}, r.destination_object,
    'failed', concat('its manifest row is not valid: ', i.reason), r.size, 0,
    (SELECT min(listed_at) FROM storeside.listings WHERE job = {job:String} AND side = 'listing'), {run_id:String}, {options:String}
FROM (SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String})) AS r
INNER JOIN
(
    SELECT JSONExtractString(row, 'object') AS object, arrayStringConcat(arraySort(any(reasons)), '; ') AS reason
    FROM speech.manifest_quarantine
    WHERE bucket = {facts:String} AND key = {key:String}
    GROUP BY object
) AS i ON r.object = i.object
SETTINGS async_insert = 0
