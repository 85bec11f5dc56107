-- Problems that tasks have told through a notifier. A problem that stands is not told again.
CREATE TABLE IF NOT EXISTS storeside.alerts
(
    alert String COMMENT 'DAG and task that tell',
    notifier String,
    condition String,
    problem String COMMENT 'which of the problems that the condition can find',
    state Enum8('told' = 1, 'over' = 2),
    level Float64 COMMENT 'how large the problem is; a larger one is told again',
    run_id String COMMENT 'the last run that found it',
    told_at DateTime64(3),
    recorded_at DateTime64(6) DEFAULT now64(6)
)
ENGINE = ReplacingMergeTree(recorded_at)
ORDER BY (alert, notifier, condition, problem)
TTL toDateTime(recorded_at) + INTERVAL 90 DAY;
