-- What an export writes of a bucket's recordings: the published rows of the speech manifest. A part of another query.
(
    SELECT
        bucket, object, sample_rate, channels, samples, duration_seconds, silence_share, clipped_share, bandwidth_hz,
        snr_db,
        CAST([], 'Array(String)') AS supervisions,
        CAST(
            (rms_dbfs, silence_share, clipped_share, bandwidth_hz, snr_db),
            'Tuple(rms_dbfs Float64, silence_share Nullable(Float64), clipped_share Nullable(Float64),
                bandwidth_hz Nullable(Float64), snr_db Nullable(Float64))'
        ) AS custom
    FROM speech.manifest FINAL
    WHERE bucket = {bucket:String} AND ({run_id:String} = '' OR run_id = {run_id:String})
)
