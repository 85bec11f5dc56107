CREATE DATABASE IF NOT EXISTS speech;

-- Users read the manifest and grant rights on it, so it is not in the ledger's database. A later migration that changes
-- its columns changes those of both tables, also below: this migration is applied again if a table of the ledger is
-- lost, and then moves rows between tables of which one may be new.
CREATE TABLE IF NOT EXISTS speech.manifest AS storeside.speech;

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

ALTER TABLE storeside.speech ADD COLUMN IF NOT EXISTS _storeside_load UInt64 MATERIALIZED 0;

ALTER TABLE speech.manifest ADD COLUMN IF NOT EXISTS _storeside_load UInt64 MATERIALIZED 0;

ALTER TABLE storeside.speech MOVE PARTITION tuple() TO TABLE speech.manifest;

ALTER TABLE storeside.speech MODIFY COMMENT 'empty: its rows are in speech.manifest';
