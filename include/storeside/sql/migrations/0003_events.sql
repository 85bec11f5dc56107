CREATE DATABASE IF NOT EXISTS storeside;

-- What became of every S3 event that was received: one row per record of a message.
CREATE TABLE IF NOT EXISTS storeside.events
(
    queue String COMMENT 'URL',
    message_id String,
    record UInt32 COMMENT 'position in the message',
    event LowCardinality(String) COMMENT 'such as ObjectCreated:Put; empty when the message is no S3 notification',
    bucket String,
    key String,
    version String COMMENT 'ETag',
    size UInt64,
    happened_at DateTime64(3),
    sent_at DateTime64(3) COMMENT 'when the queue got the message',
    receives UInt32 COMMENT 'how often the message was received',
    failures UInt32 COMMENT 'how often it was given back because its objects could not be processed',
    state Enum8('loaded' = 1, 'skipped' = 2, 'released' = 3, 'dead' = 4),
    reason String,
    run_id String,
    recorded_at DateTime64(6) DEFAULT now64(6)
)
ENGINE = ReplacingMergeTree(recorded_at)
ORDER BY (queue, message_id, record)
TTL toDateTime(recorded_at) + INTERVAL 90 DAY;

-- Batches of messages that were leased for a run, and how far it is with them.
CREATE TABLE IF NOT EXISTS storeside.event_batches
(
    queue String COMMENT 'URL',
    batch String,
    state Enum8('open' = 1, 'taken' = 2, 'settled' = 3, 'given_up' = 4) COMMENT 'open: leased, and no run has it',
    messages UInt32,
    run_id String,
    recorded_at DateTime64(6) DEFAULT now64(6)
)
ENGINE = ReplacingMergeTree(recorded_at)
ORDER BY (queue, batch)
TTL toDateTime(recorded_at) + INTERVAL 30 DAY;

-- The leased messages of batches that are not settled, for whoever takes a batch over.
CREATE TABLE IF NOT EXISTS storeside.event_leases
(
    batch String,
    message_id String,
    receipt_handle String,
    body String,
    sent_at Float64 COMMENT 'seconds since the epoch',
    receives UInt32,
    message_group String COMMENT 'of a FIFO queue',
    leased_at DateTime DEFAULT now()
)
ENGINE = MergeTree
PARTITION BY batch
ORDER BY message_id
TTL leased_at + INTERVAL 1 DAY;

-- Runs that follow a queue all the time: meanwhile its watchers receive nothing.
CREATE TABLE IF NOT EXISTS storeside.queue_followers
(
    queue String COMMENT 'URL',
    run_id String,
    follows Bool COMMENT 'false when it has ended',
    recorded_at DateTime64(6) DEFAULT now64(6) COMMENT 'when it was there last'
)
ENGINE = ReplacingMergeTree(recorded_at)
ORDER BY (queue, run_id)
TTL toDateTime(recorded_at) + INTERVAL 1 DAY;

-- Depth and lag of queues over time.
CREATE TABLE IF NOT EXISTS storeside.queue_depths
(
    queue String COMMENT 'URL',
    visible UInt64,
    in_flight UInt64,
    delayed UInt64,
    dead UInt64 COMMENT 'visible in its dead-letter queue',
    oldest_seconds Float64 COMMENT 'age of the oldest message that was received and is not done; 0 when there is none',
    recorded_at DateTime64(3) DEFAULT now64(3)
)
ENGINE = MergeTree
ORDER BY (queue, recorded_at)
TTL toDateTime(recorded_at) + INTERVAL 30 DAY;
