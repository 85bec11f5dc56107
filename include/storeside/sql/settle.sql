-- Records pending objects as done in the ledger if their result is fresh, as left out if the transformer left them out,
-- and otherwise as failed with a reason. If the objects are in another storage system, that system may have caused the
-- failure. So unless the transformer refused an object, its failure is recorded without a version, and the next run
-- tries it again.
INSERT INTO storeside.objects
    (source, destination, prepend, object, version, effect, destination_object, status, reason, bytes_in, bytes_out,
    result_version, listed_at, run_id, options, given, facts)
SELECT
    {source:String}, {destination:String}, {prepend:String}, r.object,
    if(r.fresh OR e.refused OR e.is_left_out OR NOT {remote:Bool}, r.version, ''), {effect:String}, r.destination_object,
    multiIf(r.fresh, 'done', e.is_left_out, 'left_out', 'failed'),
    multiIf(r.fresh, '', e.why != '', e.why, {no_reason:String}),
    r.size, if(r.fresh, r.result_size, 0), if(r.fresh, r.result_version, ''),
    (SELECT min(listed_at) FROM storeside.listings WHERE job = {job:String} AND side = 'listing'), {run_id:String}, {options:String},
    g.given, if(r.fresh, k.of_result, if(e.is_left_out, k.of_left_out, ''))
FROM (SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String})) AS r
LEFT JOIN
(
    SELECT
        object, argMax(reason, (side = 'changed', side = 'left_out', side = 'final', listed_at)) AS why,
        max(side = 'final') AS refused, max(side = 'left_out') AND NOT max(side = 'changed') AS is_left_out
    FROM storeside.listings
    WHERE job = {job:String} AND side IN ('reason', 'final', 'left_out', 'changed')
    GROUP BY object
) AS e ON e.object = r.object
LEFT JOIN
(
    SELECT object, version AS given FROM storeside.listings WHERE job = {job:String} AND side = 'given'
) AS g ON g.object = r.object
LEFT JOIN
(
    SELECT
        object, argMaxIf(version, listed_at, side = 'facts') AS of_result,
        argMaxIf(version, listed_at, side = 'left_out') AS of_left_out
    FROM storeside.listings
    WHERE job = {job:String} AND side IN ('facts', 'left_out')
    GROUP BY object
) AS k ON k.object = r.object
WHERE if(r.fresh, {record_done:Bool}, e.why != '' OR {no_reason:String} != '')
SETTINGS async_insert = 0
