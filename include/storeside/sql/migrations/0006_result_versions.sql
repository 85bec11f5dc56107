-- The version of each result, so that a result that was damaged or overwritten later is made again. Rows of version 0.1.0
-- have none: only their sizes are compared.
ALTER TABLE storeside.objects
    ADD COLUMN IF NOT EXISTS result_version String COMMENT 'version of the result, as the destination listed it' AFTER bytes_out;

ALTER TABLE storeside.listings
    COMMENT COLUMN side 'source, before, after, now: listings; pending, known_bad, refused: the plan, all of it once there is planned; accepted: copies; reason, final: errors';

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
    a.version AS result_version,
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
