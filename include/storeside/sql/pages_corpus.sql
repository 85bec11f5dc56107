-- What became of the objects of transforms whose transformer states facts: the hours of what is kept, and of what is left
-- out, by reason. A shard states the numbers and seconds of its parts. A transformer may be hostile, so the seconds of an
-- object are limited.
WITH
    JSONExtract(
        facts,
        'Tuple(duration_seconds Nullable(Float64), kept Array(Float64), left_out Map(String, Array(Float64)))'
    ) AS found,
    length(found.kept) = 2 AS has_parts,
    has_parts OR found.duration_seconds IS NOT NULL AS is_known
SELECT
    source, destination, step.1 AS outcome, step.2 AS reason, countIf(step.3 > 0) AS objects,
    sum(if(step.3 >= 0, toUInt64(least(step.3, 1e6)), 0)) AS parts, sum(if(step.4 >= 0, least(step.4, 1e6), 0)) AS seconds,
    sum(step.5) AS unknown
FROM
(
    SELECT
        source, destination,
        arrayJoin(arrayConcat(
            [(
                toString(status), if(status = 'left_out', reason, ''), if(has_parts, found.kept[1], 1),
                if(has_parts, found.kept[2], ifNull(found.duration_seconds, 0)), toUInt8(NOT is_known)
            )],
            arrayMap(
                (why, sums) -> ('left_out', why, sums[1], sums[2], toUInt8(0)),
                mapKeys(found.left_out), mapValues(found.left_out)
            )
        )) AS step
    FROM storeside.objects FINAL
    WHERE effect != '' AND result_of = ''
        AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
        AND (source, destination) IN
        (
            SELECT source, destination
            FROM storeside.objects
            WHERE facts != ''
                AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
                AND
                (
                    {bucket:String} = '' OR positionCaseInsensitiveUTF8(source, {bucket:String}) > 0
                    OR positionCaseInsensitiveUTF8(destination, {bucket:String}) > 0
                )
            GROUP BY source, destination
            ORDER BY max(recorded_at) DESC
            LIMIT {limit:UInt32}
        )
)
GROUP BY source, destination, outcome, reason
ORDER BY source, destination, seconds DESC, objects DESC, reason
LIMIT {rows:UInt32}
