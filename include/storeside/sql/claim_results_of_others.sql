-- The results of other source buckets that a listed object would overwrite: the ledger records one as done, and the
-- destination still lists it with the recorded size, and the recorded version or content (see plan.sql). A row has the
-- owner as its object, with its bucket. Results that replaced their own objects do not count.
INSERT INTO storeside.listings (job, side, object, destination_object)
WITH
    splitByChar('/', d.version) AS now,
    splitByChar('/', o.result_version) AS recorded,
    toString(d.size) AS no_checksum
SELECT {job:String}, 'rival', min(concat(o.source, '/', o.object)), o.destination_object
FROM
(
    SELECT source, object, destination_object, bytes_out, result_version
    FROM storeside.objects FINAL
    WHERE destination = {destination:String} AND source != {source:String} AND source != {destination:String}
        AND status = 'done' AND destination_object IN
    (
        SELECT s.destination_object
        FROM
        (
            -- without FINAL, it may find too many names, which are ruled out above
            SELECT destination_object FROM storeside.objects
            WHERE destination = {destination:String} AND source != {source:String} AND source != {destination:String}
                AND status = 'done' AND {source:String} != {destination:String}
        ) AS o
        INNER JOIN
        (
            SELECT destination_object FROM storeside.listings
            WHERE job = {job:String} AND side = 'source' AND destination_object != ''
        ) AS s ON s.destination_object = o.destination_object
    )
) AS o
INNER JOIN
(
    SELECT destination_object, size, version FROM storeside.listings WHERE job = {job:String} AND side = 'before'
) AS d ON d.destination_object = o.destination_object
WHERE d.size = o.bytes_out AND (
    o.result_version IN ('', d.version)
    OR if(now[-1] = no_checksum OR recorded[-1] = no_checksum, now[1] = recorded[1], now[-1] = recorded[-1])
)
GROUP BY o.destination_object
SETTINGS join_algorithm = 'grace_hash', async_insert = 0
