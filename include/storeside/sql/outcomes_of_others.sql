-- Of the objects that a job planned to process, or refused: how many another run recorded as failed meanwhile, with some
-- of them and the reasons, and how many have no outcome of the listed version, so that another try processes them.
WITH o.is_other AND o.status = 'failed' AND o.version IN (p.version, '') AS is_failed,
    o.is_other AND o.status IN ('done', 'left_out') AND o.version = p.version AS is_done
SELECT
    countIf(is_failed), countIf(NOT o.is_own AND NOT is_failed AND NOT is_done),
    groupArrayIf({limit:UInt32})((p.object, o.reason), is_failed)
FROM (SELECT object, version FROM storeside.listings WHERE job = {job:String} AND side IN ('pending', 'refused')) AS p
LEFT JOIN
(
    SELECT
        object, version, toString(status) AS status, reason, run_id = {run_id:String} AS is_own,
        NOT is_own AND effect = {effect:String} AS is_other
    FROM storeside.objects FINAL
    WHERE source = {source:String} AND destination = {destination:String} AND prepend = {prepend:String}
) AS o ON o.object = p.object
SETTINGS join_algorithm = 'grace_hash', join_use_nulls = 0
