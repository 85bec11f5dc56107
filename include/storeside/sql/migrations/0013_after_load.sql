-- What the load that published an object is to do with it afterwards; see `AfterLoad`.
ALTER TABLE storeside.loads ADD COLUMN IF NOT EXISTS after_load Enum8('none' = 0, 'delete' = 1, 'move' = 2, 'tag' = 3) DEFAULT 'none';

-- What became of source objects that were to be deleted, moved or tagged after their load. 'copied': the copy of a
-- move is complete, and the source object is still to be deleted. 'changed': another version has replaced the loaded
-- one, which was not touched. 'failed': the next run tries again.
CREATE TABLE IF NOT EXISTS storeside.source_objects
(
    destination String COMMENT 'database.table',
    bucket String,
    key String,
    version String COMMENT 'ETag',
    action Enum8('delete' = 1, 'move' = 2, 'tag' = 3),
    state Enum8('copied' = 1, 'done' = 2, 'changed' = 3, 'failed' = 4),
    place String COMMENT 'URI of the copy of a moved object',
    reason String,
    run_id String,
    recorded_at DateTime64(6) DEFAULT now64(6)
)
ENGINE = ReplacingMergeTree(recorded_at)
ORDER BY (destination, bucket, key, version, action);
