-- Rows of the speech manifest as Lhotse's cuts, one per recording, with the facts of the recording as custom fields.
SELECT
    object AS id, 0 AS start, duration_seconds AS duration,
    if(
        channels = 1, CAST(toUInt8(0), 'Variant(UInt8, Array(UInt8))'),
        CAST(CAST(range(channels), 'Array(UInt8)'), 'Variant(UInt8, Array(UInt8))')
    ) AS channel,
    CAST([], 'Array(String)') AS supervisions,
    CAST(
        (
            object, [('url', range(channels), concat(bucket, '/', object))],
            sample_rate, samples, duration_seconds, range(channels)
        ),
        'Tuple(id String, sources Array(Tuple(type String, channels Array(UInt8), source String)),
            sampling_rate UInt32, num_samples UInt64, duration Float64, channel_ids Array(UInt8))'
    ) AS recording,
    CAST(
        (rms_dbfs, silence_share, clipped_share, bandwidth_hz, snr_db),
        'Tuple(rms_dbfs Float64, silence_share Nullable(Float64), clipped_share Nullable(Float64),
            bandwidth_hz Nullable(Float64), snr_db Nullable(Float64))'
    ) AS custom,
    if(channels = 1, 'MonoCut', 'MultiCut') AS type
FROM speech.manifest FINAL
WHERE bucket = {bucket:String} AND ({run_id:String} = '' OR run_id = {run_id:String})
ORDER BY object
