-- The manifest rows of a run: facts of the objects that are done when the run publishes, joined with each object's
-- origin, except rows that are already published with all facts. Other facts, such as those of an undelivered object,
-- give no row. An object that another probe of the run has staged gives no second row.
-- If several buckets had an object of the same name, the origin is the one that was written last.
-- Facts from transformers of earlier versions do not state whether a recording is complete, and lack the facts of its
-- signal.
INSERT INTO storeside_staging.{staging:Identifier}
(
    bucket, object, source_bucket, source_object, source_version, duration_seconds, sample_rate, channels, samples,
    bytes, peak_dbfs, rms_dbfs, checksum, codec, complete, declared_seconds, ignored, silence_share,
    clipped_share, bandwidth_hz, snr_db, run_id, loaded_at
)
SELECT
    {bucket:String}, r.object, if(i.object != '', i.source, t.source), t.object,
    if(i.object != '', i.version, t.version),
    f.duration_seconds, f.sample_rate, f.channels, f.samples, f.bytes, f.peak_dbfs, f.rms_dbfs, f.checksum, f.codec,
    if(f.complete = '', 'unknown', f.complete), f.declared_seconds, f.ignored,
    f.silence_share, f.clipped_share, f.bandwidth_hz, f.snr_db,
    {run_id:String}, now64(3)
FROM (SELECT * FROM storeside.results(job = {job:String}, effect = {effect:String}) WHERE fresh) AS r
INNER JOIN storeside_staging.{facts:Identifier} AS f
    ON f.path = concat({facts_bucket:String}, '/', r.destination_object)
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
LEFT JOIN (SELECT object, checksum, source_version, silence_share FROM speech.manifest FINAL WHERE bucket = {bucket:String}) AS p
    ON p.object = r.object
WHERE r.object NOT IN (SELECT object FROM storeside_staging.{staging:Identifier}) AND NOT (
    p.checksum = f.checksum AND p.source_version = if(i.object != '', i.version, t.version)
    AND (p.silence_share IS NOT NULL OR f.silence_share IS NULL)
)
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0, async_insert = 0
