-- An object has one outcome for each prefix of results of a bucket pair, so that transforms or copies with different
-- prefixes do not replace each other's outcomes. Rows of earlier versions have no prefix: a plan finds them by the names
-- of their results.
ALTER TABLE storeside.objects
    ADD COLUMN IF NOT EXISTS prepend String COMMENT 'prefix of the names of the results' AFTER destination,
    MODIFY ORDER BY (source, destination, object, prepend);
