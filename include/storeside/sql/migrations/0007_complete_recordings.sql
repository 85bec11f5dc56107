-- Whether a recording is as long as its container states. Rows of version 0.1.0 say that this is unknown.
ALTER TABLE storeside.speech
    ADD COLUMN IF NOT EXISTS complete LowCardinality(String) DEFAULT 'unknown'
        COMMENT 'yes, no, or unknown where no container states the length' AFTER codec,
    ADD COLUMN IF NOT EXISTS declared_seconds Nullable(Float64)
        COMMENT 'as the container of the recording states it' AFTER complete,
    ADD COLUMN IF NOT EXISTS ignored String COMMENT 'bytes behind the recording that were not read'
        AFTER declared_seconds;
