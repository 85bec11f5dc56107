-- The views of 0025_several_results and 0024_left_out under names that no other migration replaces. Two tasks may apply
-- all migrations at the same time: if one was killed after an early migration had replaced a view of a late one, the
-- record listed all migrations, and the view kept its early definition. A view with another definition gets another name.
CREATE VIEW IF NOT EXISTS storeside.job_results AS
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

-- Members of shards of which the job made no result.
CREATE VIEW IF NOT EXISTS storeside.job_failed_members AS
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
INNER JOIN (SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String}) WHERE fresh) AS r
    ON r.object = m.destination_object
WHERE m.version = t.at
GROUP BY m.object;
