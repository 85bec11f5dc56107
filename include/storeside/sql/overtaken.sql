-- How many of a job's planned results another effect has made since the job was listed, or may have made: the ledger
-- records them, or a job with that effect, which is not settled yet, was submitted.
WITH began AS (SELECT min(listed_at) FROM storeside.listings WHERE job = {job:String} AND side = 'listing')
SELECT count()
FROM storeside.listings
WHERE job = {job:String} AND side = 'pending' AND destination_object IN
(
    SELECT destination_object FROM storeside.objects
    WHERE source = {source:String} AND destination = {destination:String} AND effect != {effect:String}
        AND status = 'done' AND recorded_at >= (SELECT * FROM began)
    UNION ALL
    SELECT destination_object FROM storeside.listings WHERE side = 'pending' AND job IN
    (
        SELECT job FROM storeside.listings
        WHERE side = 'submitted' AND listed_at >= (SELECT * FROM began) AND job IN
        (
            SELECT job FROM storeside.listings
            WHERE side = 'planned' AND object = {source:String} AND destination_object = {destination:String}
                AND reason != {effect:String}
        )
    )
)
