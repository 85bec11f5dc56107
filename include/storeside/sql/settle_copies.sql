-- Records copied objects as done in the ledger if the destination lists them as written, and otherwise as failed. If
-- the copy did not return the version that a listing shows, the version must differ from the version before the job. A
-- bucket of AIStore without versioning lists `/checksum`, which an equal copy leaves as it was; the worker has compared
-- the checksum of what it wrote.
INSERT INTO storeside.objects
    (source, destination, prepend, object, version, effect, destination_object, status, reason, bytes_in, bytes_out,
    result_version, listed_at, run_id, options)
WITH c.is_copied = 1 AND a.destination_object != '' AND a.size = p.size
    AND if(c.written = '', a.version != b.version OR startsWith(a.version, '/'), a.version = c.written) AS is_there
SELECT
    {source:String}, {destination:String}, {prepend:String}, p.object, p.version, {effect:String}, p.destination_object,
    if(is_there, 'done', 'failed'),
    multiIf(is_there, '', e.why != '', e.why,
        'the destination does not list the written version: another client overwrote or deleted it'),
    p.size, if(is_there, a.size, 0), if(is_there, a.version, ''),
    (SELECT min(listed_at) FROM storeside.listings WHERE job = {job:String} AND side = 'listing'), {run_id:String}, {options:String}
FROM (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'pending') AS p
LEFT JOIN
(
    SELECT object, any(version) AS written, 1 AS is_copied FROM storeside.listings
    WHERE job = {job:String} AND side IN ('adopted', 'copied') GROUP BY object
) AS c ON c.object = p.object
LEFT JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'before') AS b
    ON b.destination_object = p.destination_object
LEFT JOIN (SELECT * FROM storeside.listings WHERE job = {job:String} AND side = 'after') AS a
    ON a.destination_object = p.destination_object
LEFT JOIN (SELECT object, any(reason) AS why FROM storeside.listings
    WHERE job = {job:String} AND side = 'final' GROUP BY object) AS e ON e.object = p.object
WHERE c.is_copied = 1 OR e.why != ''
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0, async_insert = 0
