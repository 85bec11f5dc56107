-- The recordings of a run that the manifest may lack, by name: the objects that are done when the run publishes, with
-- the facts' name and size, each object's origin, and what another run has published of the same version. Other facts,
-- such as those of an undelivered object, give no row. RESULTS stands for the results of the run's probes,
-- which may overlap.
-- If several buckets had an object of the same name, the origin is the one that was written last.
SELECT
    r.object, r.destination_object, r.result_size,
    if(i.object != '', i.source, t.source), t.object, if(i.object != '', i.version, t.version) AS version,
    if(p.object != '' AND p.run_id != {run_id:String} AND p.source_version = version, p.checksum, '') AS published,
    p.silence_share IS NOT NULL
FROM (SELECT * FROM RESULTS WHERE fresh LIMIT 1 BY object) AS r
LEFT JOIN
(
    SELECT * FROM storeside.objects FINAL WHERE destination = {bucket:String} AND status = 'done'
    ORDER BY recorded_at DESC LIMIT 1 BY destination_object
) AS t ON t.destination_object = r.object
LEFT JOIN
(
    SELECT * FROM storeside.objects FINAL
    WHERE status = 'done' AND destination IN (SELECT source FROM storeside.objects WHERE destination = {bucket:String})
    ORDER BY recorded_at DESC LIMIT 1 BY destination, destination_object
) AS i ON i.destination = t.source AND i.destination_object = t.object
LEFT JOIN
(
    SELECT object, checksum, source_version, silence_share, run_id FROM speech.manifest FINAL
    WHERE bucket = {bucket:String}
) AS p ON p.object = r.object
ORDER BY r.object
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0
