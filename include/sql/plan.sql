-- What is to be done with each listed object. An object is done when the ledger has this version of it as done by the
-- same effect and its result is there and not empty. What failed for good in another run is left alone, or, unless
-- `trusts_failures`, only what has a name that cannot be. Objects with such names are refused, and of objects whose
-- results would have the same name all but the first.
INSERT INTO storeside.listings (job, side, object, destination_object, size, version, reason)
SELECT
    {job:String},
    multiIf(
        l.status = 'failed' AND l.version = s.version AND l.effect = {effect:String}
            AND l.run_id != {run_id:String} AND NOT {retry_failed:Bool}
            AND ({trusts_failures:Bool} OR s.reason != ''), 'known_bad',
        s.reason != '' OR s.object != s.winner, 'refused',
        'pending'
    ),
    s.object, s.destination_object, s.size, s.version,
    multiIf(
        s.reason != '', s.reason,
        s.object != s.winner, concat('its result would be named ', s.destination_object, ', like that of ', s.winner),
        ''
    )
FROM
(
    SELECT
        object, destination_object, size, version, reason,
        min(object) OVER (PARTITION BY destination_object) AS winner
    FROM storeside.listings
    WHERE job = {job:String} AND side = 'source'
) AS s
LEFT JOIN
(
    SELECT destination_object, size FROM storeside.listings WHERE job = {job:String} AND side = 'before'
) AS d ON d.destination_object = s.destination_object
LEFT JOIN
(
    SELECT object, version, effect, toString(status) AS status, run_id
    FROM storeside.objects FINAL
    WHERE source = {source:String} AND destination = {destination:String}
) AS l ON l.object = s.object
WHERE NOT (
    l.status = 'done' AND l.version = s.version AND l.effect = {effect:String}
    AND (d.destination_object != '' AND (d.size > 0 OR {effect:String} = '') OR NOT {keeps_result:Bool})
)
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0, async_insert = 0
