-- Recordings or utterances as Lhotse's cuts, with their facts as custom fields.
SELECT
    object AS id, 0 AS start, duration_seconds AS duration,
    if(
        channels = 1, CAST(toUInt8(0), 'Variant(UInt8, Array(UInt8))'),
        CAST(CAST(range(channels), 'Array(UInt8)'), 'Variant(UInt8, Array(UInt8))')
    ) AS channel,
    supervisions,
    CAST(
        (
            object, [('url', range(channels), concat(bucket, '/', object))],
            sample_rate, samples, duration_seconds, range(channels)
        ),
        'Tuple(id String, sources Array(Tuple(type String, channels Array(UInt8), source String)),
            sampling_rate UInt32, num_samples UInt64, duration Float64, channel_ids Array(UInt8))'
    ) AS recording,
    custom,
    if(channels = 1, 'MonoCut', 'MultiCut') AS type
FROM EXPORTED
ORDER BY object
