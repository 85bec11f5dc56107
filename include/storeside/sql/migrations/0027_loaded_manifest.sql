-- The normal load fills the manifest, and keeps the load of each row in this column, which `SELECT *` omits.
-- 0009 has the same statements, because it moves rows between the tables if it is applied again.
ALTER TABLE storeside.speech ADD COLUMN IF NOT EXISTS _storeside_load UInt64 MATERIALIZED 0;

ALTER TABLE speech.manifest ADD COLUMN IF NOT EXISTS _storeside_load UInt64 MATERIALIZED 0;
