-- Members without a result of shards that have a fresh result, as the server last reported the shard. A member is on the
-- side `member` of a job's listings, with its shard as destination_object and the time of the delivery as version.
CREATE OR REPLACE VIEW storeside.failed_members AS
SELECT m.object AS object, any(m.reason) AS reason, any(r.version) AS version, any(r.destination_object) AS destination_object
FROM (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'member') AS m
INNER JOIN
(
    SELECT object, max(version) AS at FROM storeside.listings WHERE job = {job:String} AND side = 'reported' GROUP BY object
) AS t ON t.object = m.destination_object
INNER JOIN (SELECT * FROM storeside.results(job = {job:String}, effect = {effect:String}) WHERE fresh) AS r
    ON r.object = m.destination_object
WHERE m.version = t.at
GROUP BY m.object;
