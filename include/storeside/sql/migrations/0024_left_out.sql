-- A transformer may leave an object out: it has no result, and that is no failure.
ALTER TABLE storeside.objects
    MODIFY COLUMN status Enum8('done' = 1, 'failed' = 2, 'left_out' = 3);

ALTER TABLE storeside.listings
    COMMENT COLUMN side 'listing: listed_at is the time when the listing of the source began; source, before, after, now: listings; held: copies of remote objects in the cluster, with their versions; pending, known_bad, forgiven, refused: the plan, all of it once there is planned; forgiven: failures that a user accepted; accepted: copies; changed: results of other versions than planned; reason, final: errors; left_out: objects that the transformer left out; member, left_out_member: members of shards without a result; reported: shards that a server delivered';

-- As in 0011_members, with the members that the transformer left out.
CREATE OR REPLACE VIEW storeside.failed_members AS
SELECT
    m.object AS object, any(m.reason) AS reason, any(r.version) AS version, any(r.destination_object) AS destination_object,
    max(m.side = 'left_out_member') AS left_out
FROM
(
    SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'member'
    UNION ALL
    SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'left_out_member'
) AS m
INNER JOIN
(
    SELECT object, max(version) AS at FROM storeside.listings WHERE job = {job:String} AND side = 'reported' GROUP BY object
) AS t ON t.object = m.destination_object
INNER JOIN (SELECT * FROM storeside.results(job = {job:String}, effect = {effect:String}) WHERE fresh) AS r
    ON r.object = m.destination_object
WHERE m.version = t.at
GROUP BY m.object;
