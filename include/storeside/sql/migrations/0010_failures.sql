-- The failures of each run. storeside.objects and storeside.loads keep one row per object or object version, so a later
-- run replaces what an earlier run recorded there. `state` is done if a later try of the same run mended the object.
CREATE TABLE IF NOT EXISTS storeside.failures
(
    run_id String,
    source String COMMENT 'bucket as a URI',
    destination String COMMENT 'bucket or table as a URI',
    object String,
    version String,
    state LowCardinality(String) COMMENT 'failed or done',
    reason String,
    bytes UInt64,
    recorded_at DateTime64(3)
)
ENGINE = ReplacingMergeTree(recorded_at)
ORDER BY (run_id, source, destination, object, version)
TTL toDateTime(recorded_at) + INTERVAL 90 DAY;
