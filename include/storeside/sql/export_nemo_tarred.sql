-- Utterances in the format of NeMo's manifests of tarred audio: `audio_filepath` is a member of the shard. TEXTS are columns
-- of segments.
WITH shards AS
(
    SELECT shard AS numbered, row_number() OVER (ORDER BY shard) - 1 AS shard_id
    FROM (SELECT DISTINCT shard FROM EXPORTED)
)
SELECT
    member AS audio_filepath, duration_seconds AS duration, shard_id, concat(bucket, '/', shard) AS shard_path,
    sample_rate, channels, silence_share, clipped_share, bandwidth_hz, snr_db, TEXTS
FROM EXPORTED AS utterances
INNER JOIN shards ON shards.numbered = utterances.shard
ORDER BY shard_id, member
