-- A measurement may have several load generators, which run at the same time on the worker.
ALTER TABLE storeside.throughput_runs
    ADD COLUMN IF NOT EXISTS loaders UInt16 DEFAULT 1 COMMENT 'load generators that ran at the same time' AFTER nodes,
    ADD COLUMN IF NOT EXISTS latency_min Nullable(Float64) COMMENT 'seconds, as the loaders see it' AFTER latency,
    ADD COLUMN IF NOT EXISTS latency_max Nullable(Float64) COMMENT 'seconds, as the loaders see it' AFTER latency_min,
    MODIFY COLUMN concurrency UInt32 COMMENT 'workers of each loader';
