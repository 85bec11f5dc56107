-- The manifest rows of a run: facts joined with where each object came from, less what is published already.
INSERT INTO storeside_staging.{staging:Identifier}
SELECT
    {bucket:String}, f.object, if(i.object != '', i.source, t.source), t.object, if(i.object != '', i.version, t.version),
    f.duration_seconds, f.sample_rate, f.channels, f.samples, f.bytes, f.peak_dbfs, f.rms_dbfs, f.checksum, f.codec,
    {run_id:String}, now64(3)
FROM
(
    -- facts of an object with another extension, or none, have its very name: AIStore gives them no '.json'
    SELECT *, replaceRegexpOne(substring(path, length({path:String}) + 1), '\\.(wav|flac|mp3|ogg|m4a)\\.json$', '.\\1') AS object
    FROM storeside_staging.{facts:Identifier}
) AS f
LEFT JOIN (SELECT * FROM storeside.objects FINAL WHERE destination = {bucket:String} AND status = 'done') AS t
    ON t.destination_object = f.object
LEFT JOIN (SELECT * FROM storeside.objects FINAL WHERE status = 'done') AS i
    ON i.destination = t.source AND i.destination_object = t.object
LEFT JOIN (SELECT object, checksum, source_version FROM storeside.speech FINAL WHERE bucket = {bucket:String}) AS p
    ON p.object = f.object
WHERE NOT (p.checksum = f.checksum AND p.source_version = if(i.object != '', i.version, t.version))
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0, async_insert = 0
