-- What an export writes of the given segments in a table: each is a member of a shard. A part of another query.
(
    SELECT
        {bucket:String} AS bucket, concat(shard, '/', member) AS object, shard, member, sample_rate, channels, samples,
        duration_seconds, silence_share, clipped_share, bandwidth_hz, snr_db, text, speaker, language,
        CAST(
            [(
                object, object, 0, duration_seconds,
                if(
                    channels = 1, CAST(toUInt8(0), 'Variant(UInt8, Array(UInt8))'),
                    CAST(CAST(range(channels), 'Array(UInt8)'), 'Variant(UInt8, Array(UInt8))')
                ),
                text, nullIf(speaker, ''), nullIf(toString(language), '')
            )],
            'Array(Tuple(id String, recording_id String, start Float64, duration Float64,
                channel Variant(UInt8, Array(UInt8)), text String, speaker Nullable(String), language Nullable(String)))'
        ) AS supervisions,
        CAST(
            (
                recording, utterance, segment, start_seconds, end_seconds, rms_dbfs, silence_share, clipped_share,
                bandwidth_hz, snr_db
            ),
            'Tuple(recording String, utterance UInt32, segment String, start_seconds Float64, end_seconds Float64,
                rms_dbfs Float64, silence_share Float64, clipped_share Float64, bandwidth_hz Nullable(Float64),
                snr_db Nullable(Float64))'
        ) AS custom
    FROM {database:Identifier}.{table:Identifier}
    WHERE KEPT
)
