-- Rows of the speech manifest in NeMo's manifest format, one JSON object per recording.
SELECT
    concat(bucket, '/', object) AS audio_filepath, duration_seconds AS duration, sample_rate, channels,
    silence_share, clipped_share, bandwidth_hz, snr_db
FROM speech.manifest FINAL
WHERE bucket = {bucket:String} AND ({run_id:String} = '' OR run_id = {run_id:String})
ORDER BY object
