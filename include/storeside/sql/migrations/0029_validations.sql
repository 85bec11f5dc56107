-- Results of the suites that loads check their rows against, in Great Expectations' own format.
CREATE TABLE IF NOT EXISTS storeside.validations
(
    destination String COMMENT 'the table, as database.table',
    validated_at DateTime64(3) DEFAULT now64(3),
    run_id String COMMENT 'the run that loaded; a run that is tried again has a row for each try',
    suite String COMMENT 'name of the suite',
    success Bool COMMENT 'whether all expectations of severity critical are met',
    rows UInt64 COMMENT 'rows that were checked',
    result String COMMENT 'an ExpectationSuiteValidationResult as JSON' CODEC(ZSTD(3))
)
ENGINE = MergeTree
ORDER BY (destination, validated_at, run_id)
TTL toDateTime(validated_at) + INTERVAL 90 DAY;
