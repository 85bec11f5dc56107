CREATE DATABASE IF NOT EXISTS speech;

-- Users read the manifest and grant rights on it, so it is not in the ledger's database. A later migration that changes
-- its columns changes those of storeside.speech as well, or this one could not be applied again.
CREATE TABLE IF NOT EXISTS speech.manifest AS storeside.speech;

ALTER TABLE storeside.speech MOVE PARTITION tuple() TO TABLE speech.manifest;

ALTER TABLE storeside.speech MODIFY COMMENT 'empty: its rows are in speech.manifest';
