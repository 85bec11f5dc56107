-- Problems that tasks have sent through a notifier. A problem that stands is not sent again.
CREATE TABLE IF NOT EXISTS storeside.alerts
(
    alert String COMMENT 'DAG and task',
    notifier String,
    condition String,
    problem String COMMENT 'which of the problems that the condition can find',
    state Enum8('sent' = 1, 'over' = 2),
    level Float64 COMMENT 'size of the problem',
    run_id String COMMENT 'the last run that found it',
    sent_at DateTime64(3),
    recorded_at DateTime64(6) DEFAULT now64(6)
)
ENGINE = ReplacingMergeTree(recorded_at)
ORDER BY (alert, notifier, condition, problem)
TTL toDateTime(recorded_at) + INTERVAL 90 DAY;
