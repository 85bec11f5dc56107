-- Utterances or segments as metadata of Hugging Face's folders of audio, which have the members as files: the names are
-- those of a split of the shards. TEXTS are columns of segments.
SELECT
    concat(replaceRegexpOne(shard, '\\.tar$', ''), '/', member) AS file_name, duration_seconds AS duration, sample_rate,
    channels, silence_share, clipped_share, bandwidth_hz, snr_db, TEXTS
FROM EXPORTED
ORDER BY file_name
