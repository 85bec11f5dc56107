CREATE DATABASE IF NOT EXISTS storeside;
CREATE DATABASE IF NOT EXISTS storeside_staging;

-- What happened to every object version that was to be loaded into a table.
CREATE TABLE IF NOT EXISTS storeside.loads
(
    destination String COMMENT 'database.table',
    bucket String,
    key String,
    version String COMMENT 'ETag',
    load_id UInt64 COMMENT 'the rows have it in their hidden column _storeside_load',
    state Enum8('publishing' = 1, 'loaded' = 2, 'failed' = 3, 'replaced' = 4),
    rows UInt64,
    rejected UInt64,
    bytes UInt64,
    modified DateTime64(3),
    reason String,
    run_id String,
    recorded_at DateTime64(6) DEFAULT now64(6)
)
ENGINE = ReplacingMergeTree(recorded_at)
ORDER BY (destination, bucket, key, version);

-- The objects of one transfer while it runs, in the batches that they are loaded in.
CREATE TABLE IF NOT EXISTS storeside.load_plan
(
    transfer String,
    batch UInt32,
    pushed Bool COMMENT 'a worker has to read it: ClickHouse cannot address it',
    key String,
    version String,
    size UInt64,
    modified DateTime64(3),
    load_id UInt64,
    planned_at DateTime64(6) DEFAULT now64(6)
)
ENGINE = MergeTree
PARTITION BY transfer
ORDER BY (batch, key)
TTL toDateTime(planned_at) + INTERVAL 7 DAY;

-- Listings that a worker made, as input of a plan.
CREATE TABLE IF NOT EXISTS storeside.load_listings
(
    transfer String,
    key String,
    etag String,
    size UInt64,
    modified String COMMENT 'as S3 writes it',
    listed_at DateTime DEFAULT now()
)
ENGINE = MergeTree
PARTITION BY transfer
ORDER BY key
TTL listed_at + INTERVAL 7 DAY;
