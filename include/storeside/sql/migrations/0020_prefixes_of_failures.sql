-- Tasks of one run may process the same objects with different prefixes of results: each has its own failures.
ALTER TABLE storeside.failures
    ADD COLUMN IF NOT EXISTS prepend String COMMENT 'prefix of the names of the results' AFTER destination,
    MODIFY ORDER BY (run_id, source, destination, object, version, prepend);
