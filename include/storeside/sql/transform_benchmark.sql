CREATE DATABASE IF NOT EXISTS storeside;

-- One row per round of a combination: server x channel x file access x direct put (make bench-matrix).
CREATE TABLE IF NOT EXISTS storeside.transform_benchmark
(
    server LowCardinality(String),
    channel LowCardinality(String),
    file_access LowCardinality(String) COMMENT 'file access, or empty',
    direct_put LowCardinality(String) COMMENT 'direct put, or empty',
    round UInt16,
    objects_per_second Float64,
    cpu_ms_per_object Float64,
    cpu_ms_in_aistore Float64,
    cpu_ms_in_server Float64,
    host String,
    recorded_at DateTime64(3) DEFAULT now64(3)
)
ENGINE = MergeTree
ORDER BY (server, channel, file_access, direct_put, recorded_at);
