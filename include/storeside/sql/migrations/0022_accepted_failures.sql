-- A load that failed for good is tried again under other options, and a user may accept that it is missing.
ALTER TABLE storeside.loads
    ADD COLUMN IF NOT EXISTS options String COMMENT 'digest of the options that decide whether an object can be loaded',
    ADD COLUMN IF NOT EXISTS accepted_by String COMMENT 'who accepted that the object is not loaded',
    ADD COLUMN IF NOT EXISTS accepted_at DateTime64(3) COMMENT 'when, if accepted_by is set';
