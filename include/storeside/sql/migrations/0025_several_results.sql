-- An object may have several results: each has a row of its own, named object/result, with the object as its owner.
ALTER TABLE storeside.objects
    ADD COLUMN IF NOT EXISTS result_of String COMMENT 'the object of which this row is one of several results';

ALTER TABLE storeside.listings
    COMMENT COLUMN side 'listing: listed_at is the time when the listing of the source began; source, before, after, now: listings; held: copies of remote objects in the cluster, with their versions; pending, known_bad, forgiven, refused: the plan, all of it once there is planned; forgiven: failures that a user accepted; accepted: copies; changed: results of other versions than planned; announced: results that a list names, with the version of the list as reason, and a row without a result for each list that was read; incomplete: objects whose list names a result that is not stored; reason, final: errors; left_out: objects that the transformer left out; member, left_out_member: members of shards without a result; reported: shards that a server delivered';

-- As in 0021_versions_of_copies. A list of several results is not fresh until all of them are stored.
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
        AND p.object NOT IN (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'changed')
        AND p.object NOT IN (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'incomplete') AS fresh
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
