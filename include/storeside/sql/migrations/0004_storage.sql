CREATE DATABASE IF NOT EXISTS storeside;

-- Multipart uploads that a run has begun or is about to begin, so that a later one can abort those of a run that died.
CREATE TABLE IF NOT EXISTS storeside.uploads
(
    destination String,
    object String,
    run_id String,
    state Enum8('open' = 1, 'closed' = 2),
    opened_at DateTime64(3),
    seen_at DateTime64(3) DEFAULT now64(3) COMMENT 'when the run last said that it is at work'
)
ENGINE = ReplacingMergeTree(seen_at)
ORDER BY (destination, object, run_id)
TTL toDateTime(seen_at) + INTERVAL 90 DAY;

-- How an endpoint is to be used, by size of object: what the tuner found to be fastest.
CREATE TABLE IF NOT EXISTS storeside.multipart_settings
(
    endpoint String COMMENT 'API and server, such as s3 https://s3.eu-west-1.amazonaws.com',
    direction Enum8('put' = 1, 'get' = 2),
    object_size UInt64 COMMENT 'bytes of the objects that it was measured with',
    multipart Bool,
    part_size UInt64,
    concurrency UInt16,
    seconds Float64,
    single_seconds Float64 COMMENT 'the same in one piece',
    measured_at DateTime64(3)
)
ENGINE = MergeTree
ORDER BY (endpoint, direction, measured_at, object_size)
TTL toDateTime(measured_at) + INTERVAL 1 YEAR;

-- One row per measured request or upload of the benchmark of backends.
CREATE TABLE IF NOT EXISTS storeside.backend_benchmark
(
    run_id String,
    backend String COMMENT 'bucket as in storeside.objects',
    endpoint String,
    operation LowCardinality(String) COMMENT 'get cold, put single, put few parts, put many parts',
    object_size UInt64,
    part_size UInt64,
    concurrency UInt16,
    round UInt16,
    seconds Float64,
    recorded_at DateTime64(3) DEFAULT now64(3)
)
ENGINE = MergeTree
ORDER BY (run_id, operation, backend, round);
