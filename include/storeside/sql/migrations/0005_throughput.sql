CREATE DATABASE IF NOT EXISTS storeside;

-- What each target of an AIStore cluster did while its throughput was measured: one row per target and second.
CREATE TABLE IF NOT EXISTS storeside.throughput
(
    measurement String COMMENT 'dag/run/task/try',
    tick UInt32 COMMENT 'the same for all targets that were read at once',
    node LowCardinality(String),
    began DateTime64(3, 'UTC'),
    ended DateTime64(3, 'UTC'),
    read_bytes UInt64,
    reads UInt64,
    read_ns UInt64 COMMENT 'time of all reads together',
    written_bytes UInt64,
    writes UInt64,
    write_ns UInt64,
    errors UInt64,
    disk_use Array(Float32) COMMENT 'percent, by disk; empty where AIStore knows no disks'
)
ENGINE = ReplacingMergeTree
ORDER BY (measurement, node, tick)
TTL toDateTime(began) + INTERVAL 2 YEAR;

-- What came of each measurement.
CREATE TABLE IF NOT EXISTS storeside.throughput_runs
(
    measurement String,
    cluster String COMMENT 'UUID',
    nodes UInt16,
    bucket String,
    workload LowCardinality(String),
    object_bytes UInt64,
    dataset_bytes UInt64,
    prefix String,
    concurrency UInt32,
    began DateTime64(3, 'UTC') COMMENT 'of the steady part, from which the figures are',
    ended DateTime64(3, 'UTC'),
    mean Float64 COMMENT 'bytes per second of all targets',
    peak Float64,
    time_variance Float64 COMMENT 'standard deviation over the seconds by mean, percent',
    node_variance Float64 COMMENT 'fastest less slowest target by mean, percent',
    disk_use_min Nullable(Float64) COMMENT 'percent',
    disk_use Nullable(Float64),
    disk_use_max Nullable(Float64),
    bound Nullable(Float64) COMMENT 'theoretical limit, bytes per second; NULL where none was given',
    share Nullable(Float64) COMMENT 'mean by limit, percent',
    loader_bytes UInt64,
    requests UInt64,
    latency Float64 COMMENT 'mean, seconds, as the loader sees it',
    baseline Nullable(Float64) COMMENT 'median of the runs it was compared with',
    verdict LowCardinality(String) COMMENT 'first, held, regression',
    recorded_at DateTime64(3) DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(recorded_at)
ORDER BY measurement;
