-- Totals of a run for the objects that one of its jobs listed; another task of the run may have other objects. Objects
-- that the job left out because they failed for good before are counted apart, also if another task processed them.
SELECT
    countIf(status = 'done' AND NOT is_result) AS done,
    countIf(status = 'failed' AND NOT is_result) AS failed,
    sumIf(bytes_in, status = 'done') AS bytes_in,
    sumIf(bytes_out, status = 'done') AS bytes_out,
    countIf(status = 'left_out' AND NOT is_result) AS left_out
FROM
(
    -- each of several results counts for the bytes of its object
    SELECT
        if(result_of = '', objects.object, result_of) AS object, result_of != '' AS is_result, toString(status) AS status,
        bytes_in, bytes_out
    FROM storeside.objects FINAL
    WHERE source = {source:String} AND destination = {destination:String} AND prepend = {prepend:String} AND run_id = {run_id:String}
) AS o
INNER JOIN (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'source'
    AND object NOT IN (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'known_bad')) AS l
    ON l.object = o.object
SETTINGS join_algorithm = 'grace_hash'
