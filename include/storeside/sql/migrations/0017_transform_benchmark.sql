CREATE DATABASE IF NOT EXISTS storeside;

-- One row per round of a variant of a transform, or of the client: server, channel, file access and direct put.
CREATE TABLE IF NOT EXISTS storeside.transform_benchmark
(
    server LowCardinality(String) COMMENT 'storeside; fastapi, flask and http of AIStore''s SDK; client on the worker',
    channel LowCardinality(String) COMMENT 'ws, hpush, hpull; empty for the client',
    file_access LowCardinality(String) COMMENT 'file access, or empty',
    direct_put LowCardinality(String) COMMENT 'direct put, or empty',
    round UInt16,
    recorded_at DateTime64(3) DEFAULT now64(3)
)
ENGINE = MergeTree
ORDER BY (server, channel, file_access, direct_put, recorded_at);

-- Earlier versions of `make bench-matrix` created the table with other measures.
ALTER TABLE storeside.transform_benchmark
    ADD COLUMN IF NOT EXISTS run_id String FIRST,
    ADD COLUMN IF NOT EXISTS source String COMMENT 'bucket of the objects' AFTER direct_put,
    ADD COLUMN IF NOT EXISTS format String COMMENT 'of the results' AFTER source,
    ADD COLUMN IF NOT EXISTS targets UInt16 COMMENT 'of the cluster' AFTER format,
    ADD COLUMN IF NOT EXISTS objects UInt32 COMMENT 'of one round' AFTER targets,
    ADD COLUMN IF NOT EXISTS processes UInt16 COMMENT 'worker processes of a server; 0: one per CPU' AFTER objects,
    ADD COLUMN IF NOT EXISTS seconds Float64 AFTER round,
    ADD COLUMN IF NOT EXISTS objects_per_second Float64 AFTER seconds,
    ADD COLUMN IF NOT EXISTS megabytes_per_second Float64 COMMENT 'of the objects, not of their results'
        AFTER objects_per_second;
