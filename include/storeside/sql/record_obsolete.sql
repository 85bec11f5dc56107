-- Results that pending objects own and no longer have. An object owns those that the ledger records for it, and those that a
-- list of the object named, such as a list that a killed server left. An object with all results of a new list keeps these.
-- One that failed keeps all, unless a server has stored a list, and so perhaps results, meanwhile: then it has none, and its
-- list is obsolete, too. It has none either without its list, which AIStore may replace by an empty object over WebSocket.
-- One that was left out has none. The size is 1 if the destination still lists the result as it was
-- recorded; another object of that name is not Storeside's. The version is that of the object, and the reason is given for
-- results that the ledger has.
INSERT INTO storeside.listings (job, side, object, destination_object, size, version, reason)
WITH
    splitByChar('/', a.version) AS now,
    splitByChar('/', o.version) AS recorded,
    toString(a.size) AS no_checksum,
    a.destination_object != '' AND a.size = o.size AND (
        o.version IN ('', a.version)
        OR if(now[-1] = no_checksum OR recorded[-1] = no_checksum, now[1] = recorded[1], now[-1] = recorded[-1])
    ) AS is_there
SELECT
    {job:String}, 'obsolete', o.object, o.destination_object, max(is_there), any(r.version),
    multiIf(NOT max(o.is_recorded), '', any(r.fresh), 'the object no longer has this result', 'the object has no results')
FROM
(
    SELECT
        result_of AS object, destination_object, bytes_out AS size, result_version AS version, true AS is_recorded
    FROM storeside.objects FINAL
    WHERE source = {source:String} AND destination = {destination:String} AND prepend = {prepend:String}
        AND status = 'done' AND result_of != ''
    UNION ALL
    SELECT object, destination_object, size, version, false
    FROM storeside.listings
    WHERE job = {job:String} AND side = 'announced' AND destination_object != ''
    UNION ALL
    SELECT p.object, p.destination_object, a.size, a.version, false
    FROM (SELECT object, destination_object FROM storeside.listings WHERE job = {job:String} AND side = 'pending') AS p
    INNER JOIN
    (
        SELECT destination_object, size, version FROM storeside.listings WHERE job = {job:String} AND side = 'after'
    ) AS a ON a.destination_object = p.destination_object
    WHERE (p.object, a.version) IN
    (
        SELECT object, reason FROM storeside.listings
        WHERE job = {job:String} AND side = 'announced' AND destination_object != ''
    )
) AS o
INNER JOIN (SELECT * FROM storeside.job_results(job = {job:String}, effect = {effect:String})) AS r ON r.object = o.object
LEFT JOIN
(
    SELECT destination_object, size, version FROM storeside.listings WHERE job = {job:String} AND side = 'after'
) AS a ON a.destination_object = o.destination_object
WHERE if(
    r.fresh,
    o.destination_object != r.destination_object AND (o.object, o.destination_object, r.result_version) NOT IN
    (
        SELECT object, destination_object, reason FROM storeside.listings WHERE job = {job:String} AND side = 'announced'
    ),
    r.result_size = 0 OR o.object IN
    (
        SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'announced' AND destination_object != ''
        UNION ALL
        SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'left_out'
    )
)
GROUP BY o.object, o.destination_object
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0, async_insert = 0
