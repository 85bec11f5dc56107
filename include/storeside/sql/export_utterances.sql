-- What an export writes of the utterances in a table: each is a member of a shard. A part of another query.
(
    SELECT
        {bucket:String} AS bucket, concat(shard, '/', member) AS object, shard, member, sample_rate, channels, samples,
        duration_seconds, silence_share, clipped_share, bandwidth_hz, snr_db,
        CAST([], 'Array(String)') AS supervisions,
        CAST(
            (
                recording, utterance, start_seconds, end_seconds, speech_probability, rms_dbfs, silence_share,
                clipped_share, bandwidth_hz, snr_db
            ),
            'Tuple(recording String, utterance UInt32, start_seconds Float64, end_seconds Float64,
                speech_probability Float64, rms_dbfs Float64, silence_share Float64, clipped_share Float64,
                bandwidth_hz Nullable(Float64), snr_db Nullable(Float64))'
        ) AS custom
    FROM {database:Identifier}.{table:Identifier}
    WHERE KEPT
)
