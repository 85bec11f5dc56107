-- Recordings or utterances as Lhotse's recordings.
SELECT
    object AS id,
    CAST(
        [('url', range(channels), concat(bucket, '/', object))],
        'Array(Tuple(type String, channels Array(UInt8), source String))'
    ) AS sources,
    sample_rate AS sampling_rate, samples AS num_samples, duration_seconds AS duration,
    range(channels) AS channel_ids
FROM EXPORTED
ORDER BY object
