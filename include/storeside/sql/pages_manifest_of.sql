-- The row of an object in the speech manifest.
SELECT
    bucket, object, source_bucket, source_object, source_version, duration_seconds, sample_rate, channels, bytes,
    peak_dbfs, rms_dbfs, checksum, codec, complete, ignored, silence_share, clipped_share, bandwidth_hz, snr_db,
    run_id,
    toUnixTimestamp64Milli(loaded_at) AS recorded_ms
FROM speech.manifest FINAL
WHERE bucket = {bucket:String} AND object = {object:String}
    AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
