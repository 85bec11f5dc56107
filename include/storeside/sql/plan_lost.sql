-- Plans objects that were done before the job, and whose results are gone since: AIStore's `sync` removes the result of
-- a deleted object, also if it is by then the result of another object with the same name. Whatever is stored under
-- these names later is a new result (`accepted`), even in the version of the old one.
INSERT INTO storeside.listings (job, side, object, destination_object, size, version, reason)
SELECT job, arrayJoin(['pending', 'accepted']), object, destination_object, size, version, ''
FROM storeside.listings
WHERE job = {job:String} AND side = 'source'
    AND object NOT IN
    (
        SELECT object FROM storeside.listings
        WHERE job = {job:String} AND side IN ('pending', 'known_bad', 'forgiven', 'refused')
    )
    AND destination_object IN
    (SELECT destination_object FROM storeside.listings WHERE job = {job:String} AND side = 'before')
    AND destination_object NOT IN
    (SELECT destination_object FROM storeside.listings WHERE job = {job:String} AND side = 'after')
SETTINGS async_insert = 0
