-- Plans each listed object. An object is done when the ledger records this version of it as done by the same effect,
-- and the destination still lists the recorded result with the same size and the same version or content. AIStore's
-- versions are ``counter/checksum``: an equal checksum means the same content. The version of an object without a
-- checksum has the size in its place; then the counters are compared. Objects that failed for good in another run are
-- skipped under the same options; without `trusts_failures`, only those with an impossible name are. Those that a user
-- accepted are `forgiven`, the others `known_bad`. Objects that the transformer left out are skipped, too. Objects with impossible names are refused. If the results of several
-- objects would have the same name, all but one are refused: the owner of an existing result (see claim_results.sql), if
-- it exists and keeps this name, else the first of the listing. An object is refused, too, if its result would overwrite
-- that of another source bucket (see claim_results_of_others.sql and claim_results_of_running.sql), unless it is a copy and the destination has its
-- content, which another name of the same bucket may have stored. If a split would
-- store the members of one shard in a folder of other shards (`a.tar`, `a/b.tar`), the first is refused, even if it was
-- split before: `a/b/c` could be a member of both.
-- With `several`, an object is done only if each of its results is at the destination as recorded, and it is refused if
-- another object has results in the folder for its own.
-- An object that was refused only for the sake of another one is tried again when that is gone.
-- If something is given beside an object (the job's `given` side), its outcome is that of both.
-- If the cluster holds a copy of another version of a remote object, an outcome of the listed version may be that of the copy:
-- the object is tried again.
-- Results with different prefixes have outcomes of their own. Version 0.1.0 recorded no prefix, so a row without one
-- may be of a result with another name.
INSERT INTO storeside.listings (job, side, object, destination_object, size, version, reason)
WITH
    splitByChar('/', d.version) AS now,
    splitByChar('/', l.result_version) AS recorded,
    toString(d.size) AS no_checksum,
    l.result_version IN ('', d.version)
        OR if(now[-1] = no_checksum OR recorded[-1] = no_checksum, now[1] = recorded[1], now[-1] = recorded[-1])
        AS same_version,
    d.destination_object != '' AND d.destination_object = l.destination_object AND d.size = l.bytes_out AND same_version
        AND (d.size > 0 OR {effect:String} = '')
        AS result_is_there,
    if(c.owner != '', c.owner, s.first) AS winner,
    splitByChar('/', s.version)[-1] AS checksum,
    {effect:String} = '' AND d.destination_object != '' AND d.size = s.size
        AND checksum NOT IN ('', toString(s.size)) AND checksum = now[-1]
        AS content_is_there,
    r.owner != '' AND NOT content_is_there AS is_of_another,
    is_of_another OR t.owner != '' OR s.reason != '' OR s.object != winner OR f.shard != '' AS is_refused,
    h.object != ''
        AND if(h.version = '' OR s.version = '', h.size != s.size, NOT has(splitByChar('\n', h.version), s.version))
        AS is_stale,
    l.given = g.given AS same_given,
    l.status = 'failed' AND l.version = s.version AND l.effect = {effect:String} AND l.options IN ('', {options:String})
        AND (is_refused OR same_given) AND l.run_id != {run_id:String} AND NOT {retry_failed:Bool}
        AND ({trusts_failures:Bool} OR s.reason != '') AND (is_refused OR NOT was_refused)
        AND (is_refused OR NOT is_stale)
        AS is_known_bad,
    l.status = 'left_out' AND l.version = s.version AND l.effect = {effect:String} AND l.options IN ('', {options:String})
        AND same_given AND NOT is_stale
        AS is_left_out,
    startsWith(l.reason, 'its result would be named ') OR startsWith(l.reason, 'its members would be stored in the folder ')
        OR startsWith(l.reason, 'its results would be stored in the folder ')
        AS was_refused
SELECT
    {job:String},
    multiIf(
        is_known_bad, if(l.accepted_by = '', 'known_bad', 'forgiven'),
        is_refused, 'refused',
        'pending'
    ),
    s.object, s.destination_object, s.size, s.version,
    multiIf(
        s.reason != '', s.reason,
        is_of_another, concat(
            'its result would be named ', s.destination_object,
            if(r.is_running, ', which a run that has not ended makes of ', ', which is the result of '), r.owner,
            ': give the results of each source bucket their own prefix (prepend; name of shards) or their own bucket, or ',
            if(
                r.is_running, 'run this one after the end of the other',
                'delete that result if this bucket takes the place of the other'
            )
        ),
        s.object != winner AND c.owner != '', concat(
            'its result would be named ', s.destination_object, ', which is the result of ', winner,
            ': rename the object, or give its result another name (keep_extension of a transcode, extensions of a',
            ' transform, another prefix) or another bucket'
        ),
        s.object != winner, concat(
            'its result would be named ', s.destination_object, ', like that of ', winner,
            ': rename one, or give results different names (keep_extension of a transcode, extensions of a transform)'
        ),
        f.shard != '', concat(
            'its members would be stored in the folder ', s.folder, '/, in which ', f.shard,
            ' is: they could overwrite each other, so rename this shard'
        ),
        t.owner != '', concat(
            'its results would be stored in the folder ', t.folder, '/, in which ', t.example, ' is, a result of ', t.owner,
            ': they could overwrite each other, so rename the object, or give the results another prefix (prepend) or another bucket'
        ),
        ''
    )
FROM
(
    SELECT
        object, destination_object, size, version, reason,
        min(object) OVER (PARTITION BY destination_object) AS first,
        if(endsWith(object, '.tar'), left(object, length(object) - 4), '') AS folder
    FROM storeside.listings
    WHERE job = {job:String} AND side = 'source'
) AS s
LEFT JOIN
(
    SELECT
        arrayJoin(arrayMap(
            n -> arrayStringConcat(arraySlice(splitByChar('/', object), 1, n), '/'),
            range(1, length(splitByChar('/', object)))
        )) AS folder,
        min(object) AS shard
    FROM storeside.listings
    WHERE {splits:Bool} AND job = {job:String} AND side = 'source' AND endsWith(object, '.tar')
    GROUP BY folder
    HAVING folder != ''
) AS f ON f.folder = s.folder
LEFT JOIN
(
    -- the folders of lists, in which the destination has results of other objects
    SELECT
        w.folder AS folder, w.object AS object, min(o.destination_object) AS example,
        argMin(if(o.source = {source:String}, o.owner, concat(o.source, '/', o.owner)), o.destination_object) AS owner
    FROM
    (
        SELECT object, replaceRegexpOne(destination_object, '\\.jsonl$', '') AS folder
        FROM storeside.listings
        WHERE {several:Bool} AND job = {job:String} AND side = 'source' AND destination_object != ''
    ) AS w
    INNER JOIN
    (
        SELECT
            source, prepend, if(result_of = '', objects.object, result_of) AS owner, destination_object,
            replaceRegexpOne(destination_object, '/[^/]*$', '') AS folder
        FROM storeside.objects FINAL
        WHERE {several:Bool} AND destination = {destination:String} AND status = 'done'
            AND NOT endsWith(destination_object, '.jsonl') AND destination_object IN
            (SELECT destination_object FROM storeside.listings WHERE {several:Bool} AND job = {job:String} AND side = 'before')
    ) AS o ON o.folder = w.folder
    WHERE NOT (o.source = {source:String} AND o.owner = w.object AND o.prepend = {prepend:String})
    GROUP BY w.folder, w.object
) AS t ON t.object = s.object
LEFT JOIN
(
    WITH claimed AS (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'claimed')
    SELECT destination_object, argMax(object, version) AS owner
    FROM storeside.listings
    WHERE job = {job:String} AND side = 'claimed' AND (
        object IN (SELECT object FROM storeside.listings WHERE job = {job:String} AND side = 'found')
        OR (object, if(reason = {prepend:String}, destination_object, '')) IN
        (
            SELECT object, arrayJoin([destination_object, '']) FROM storeside.listings
            WHERE job = {job:String} AND side = 'source' AND object IN claimed
        )
    )
    GROUP BY destination_object
) AS c ON c.destination_object = s.destination_object
LEFT JOIN
(
    SELECT destination_object, object AS owner, reason = 'running' AS is_running
    FROM storeside.listings WHERE job = {job:String} AND side = 'rival'
) AS r ON r.destination_object = s.destination_object
LEFT JOIN
(
    SELECT destination_object, size, version FROM storeside.listings WHERE job = {job:String} AND side = 'before'
) AS d ON d.destination_object = s.destination_object
LEFT JOIN
(
    SELECT object, version, effect, toString(status) AS status, reason, run_id, bytes_out, result_version, destination_object,
        options, accepted_by, given
    FROM storeside.objects FINAL
    WHERE source = {source:String} AND destination = {destination:String}
        AND prepend = {prepend:String}
    UNION ALL
    SELECT object, version, effect, toString(status) AS status, reason, run_id, bytes_out, result_version, destination_object,
        options, accepted_by, given
    FROM storeside.objects FINAL
    WHERE source = {source:String} AND destination = {destination:String}
        AND {prepend:String} != '' AND prepend = '' AND startsWith(destination_object, {prepend:String})
        AND object NOT IN
        (
            SELECT object FROM storeside.objects
            WHERE source = {source:String} AND destination = {destination:String} AND prepend = {prepend:String}
        )
) AS l ON l.object = s.object
LEFT JOIN
(
    SELECT object, size, version FROM storeside.listings WHERE job = {job:String} AND side = 'held'
) AS h ON h.object = s.object
LEFT JOIN
(
    SELECT object, version AS given FROM storeside.listings WHERE job = {job:String} AND side = 'given'
) AS g ON g.object = s.object
WHERE f.shard != '' OR NOT is_left_out AND NOT (
    s.object NOT IN
    (
        -- objects of which one of several results is missing, or not as recorded
        WITH splitByChar('/', d.version) AS now, splitByChar('/', o.result_version) AS recorded, toString(d.size) AS no_checksum
        SELECT o.result_of
        FROM
        (
            SELECT result_of, destination_object, bytes_out, result_version FROM storeside.objects FINAL
            WHERE {several:Bool} AND source = {source:String} AND destination = {destination:String}
                AND prepend = {prepend:String} AND result_of != '' AND status = 'done'
        ) AS o
        LEFT JOIN
        (
            SELECT destination_object, size, version FROM storeside.listings
            WHERE {several:Bool} AND job = {job:String} AND side = 'before'
        ) AS d ON d.destination_object = o.destination_object
        WHERE NOT (d.destination_object != '' AND d.size = o.bytes_out AND (
            o.result_version IN ('', d.version)
            OR if(now[-1] = no_checksum OR recorded[-1] = no_checksum, now[1] = recorded[1], now[-1] = recorded[-1])
        ))
    )
    AND NOT is_stale AND l.status = 'done' AND l.version = s.version AND l.effect = {effect:String}
    AND same_given AND (result_is_there OR NOT {keeps_result:Bool})
)
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0, async_insert = 0
