-- Recordings or utterances in NeMo's manifest format, one JSON object per line. TEXTS are columns of segments.
SELECT
    concat(bucket, '/', object) AS audio_filepath, duration_seconds AS duration, sample_rate, channels,
    silence_share, clipped_share, bandwidth_hz, snr_db, TEXTS
FROM EXPORTED
ORDER BY object
