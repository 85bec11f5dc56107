CREATE DATABASE IF NOT EXISTS storeside;

-- What happened to every object version in every copy and transform: one row per object of a bucket pair.
CREATE TABLE IF NOT EXISTS storeside.objects
(
    source String,
    destination String,
    object String,
    version String COMMENT 'ETag, version or checksum of the source object',
    effect String COMMENT 'hash of what is done to the object; empty for a copy',
    destination_object String,
    status Enum8('done' = 1, 'failed' = 2),
    reason String,
    bytes_in UInt64,
    bytes_out UInt64,
    run_id String,
    recorded_at DateTime64(3) DEFAULT now64(3),
    INDEX results destination_object TYPE bloom_filter(0.001) GRANULARITY 1 -- for: what was this made from?
)
ENGINE = ReplacingMergeTree(recorded_at)
ORDER BY (source, destination, object);

-- Listings of one job while it is planned and reconciled, so that the join is ClickHouse's and not a worker's.
CREATE TABLE IF NOT EXISTS storeside.listings
(
    job String,
    side LowCardinality(String) COMMENT 'source, before, after: listings; pending, known_bad, refused: the plan, all of it once there is planned; accepted: copies; reason, final: errors',
    object String,
    destination_object String,
    size UInt64,
    version String,
    reason String,
    listed_at DateTime DEFAULT now()
)
ENGINE = MergeTree
PARTITION BY (job, side)
ORDER BY destination_object
TTL listed_at + INTERVAL 7 DAY;

-- Pending objects of a job with what the destination holds for them now. A result is fresh when it is there, is not the
-- very one that was there before, and is not empty (an error over WebSocket leaves an empty object) or, when copied
-- (without an effect), as large as its source. A copy may be there before, by a run that died: it has the checksum that
-- its source's version ends with (where that is no size, which stands in for none), or was accepted for its ETag.
CREATE OR REPLACE VIEW storeside.results AS
SELECT
    p.object AS object,
    p.destination_object AS destination_object,
    p.size AS size,
    p.version AS version,
    a.size AS result_size,
    a.destination_object != ''
        AND (a.version != b.version OR c.destination_object != '' OR {effect:String} = '' AND p.version != ''
            AND p.checksum != toString(p.size) AND endsWith('/' || a.version, '/' || p.checksum))
        AND if({effect:String} = '', a.size = p.size, a.size > 0) AS fresh
FROM
(
    SELECT *, splitByChar('/', version)[-1] AS checksum
    FROM storeside.listings WHERE job = {job:String} AND side = 'pending'
) AS p
LEFT JOIN (SELECT DISTINCT destination_object FROM storeside.listings WHERE job = {job:String} AND side = 'accepted') AS c
    ON c.destination_object = p.destination_object
LEFT JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'before') AS b
    ON b.destination_object = p.destination_object
LEFT JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'after') AS a
    ON a.destination_object = p.destination_object
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0;

-- One row per finished task of a pipeline run.
CREATE TABLE IF NOT EXISTS storeside.runs
(
    run_id String,
    dag_id LowCardinality(String),
    task_id LowCardinality(String),
    kind LowCardinality(String),
    source String,
    destination String,
    state LowCardinality(String),
    listed UInt64,
    skipped UInt64,
    done UInt64,
    failed UInt64,
    bytes_in UInt64,
    bytes_out UInt64,
    seconds Float64,
    job_seconds Float64 COMMENT 'of them, what AIStore itself worked',
    detail String,
    recorded_at DateTime64(3) DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(recorded_at)
ORDER BY (run_id, dag_id, task_id);

-- The manifest: one row per audio object, the newest version of it wins.
CREATE TABLE IF NOT EXISTS storeside.speech
(
    bucket LowCardinality(String),
    object String,
    source_bucket LowCardinality(String),
    source_object String,
    source_version String COMMENT 'ETag of the recording',
    duration_seconds Float64,
    sample_rate UInt32 COMMENT 'Hz',
    channels UInt8,
    samples UInt64 COMMENT 'per channel',
    bytes UInt64,
    peak_dbfs Float64,
    rms_dbfs Float64,
    checksum String COMMENT 'SHA-256 of the object, hex',
    codec LowCardinality(String),
    run_id String,
    loaded_at DateTime64(3) DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(loaded_at)
ORDER BY (bucket, object);
