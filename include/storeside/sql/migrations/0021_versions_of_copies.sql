-- Results of remote objects count only if AIStore transformed or copied the planned version.
ALTER TABLE storeside.listings
    COMMENT COLUMN side 'listing: listed_at is the time when the listing of the source began; source, before, after, now: listings; held: copies of remote objects in the cluster, with their versions; pending, known_bad, refused: the plan, all of it once there is planned; accepted: copies; changed: results of other versions than planned; reason, final: errors';

-- As in 0006_result_versions. A result of another version than the planned one is not fresh.
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
        AND if({effect:String} = '', a.size = p.size, a.size > 0)
        AND p.object NOT IN (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'changed') AS fresh
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
