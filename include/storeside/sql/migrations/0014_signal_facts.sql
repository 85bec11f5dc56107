-- What speech teams filter by. NULL in rows of transformers of earlier versions, and if a fact cannot be estimated.
-- 0009 has the same statements, because it moves rows between the tables if it is applied again.
ALTER TABLE storeside.speech
    ADD COLUMN IF NOT EXISTS silence_share Nullable(Float64) COMMENT 'frames below -50 dBFS, 0 to 1' AFTER ignored,
    ADD COLUMN IF NOT EXISTS clipped_share Nullable(Float64) COMMENT 'samples in runs at full scale, 0 to 1'
        AFTER silence_share,
    ADD COLUMN IF NOT EXISTS bandwidth_hz Nullable(Float64) COMMENT 'effective bandwidth of the recording'
        AFTER clipped_share,
    ADD COLUMN IF NOT EXISTS snr_db Nullable(Float64) COMMENT 'estimate of the signal-to-noise ratio'
        AFTER bandwidth_hz;

ALTER TABLE speech.manifest
    ADD COLUMN IF NOT EXISTS silence_share Nullable(Float64) COMMENT 'frames below -50 dBFS, 0 to 1' AFTER ignored,
    ADD COLUMN IF NOT EXISTS clipped_share Nullable(Float64) COMMENT 'samples in runs at full scale, 0 to 1'
        AFTER silence_share,
    ADD COLUMN IF NOT EXISTS bandwidth_hz Nullable(Float64) COMMENT 'effective bandwidth of the recording'
        AFTER clipped_share,
    ADD COLUMN IF NOT EXISTS snr_db Nullable(Float64) COMMENT 'estimate of the signal-to-noise ratio'
        AFTER bandwidth_hz;
