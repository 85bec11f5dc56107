-- Objects in the ledger whose names, or whose results' names, begin with a text or contain it. Two searches find them
-- (see pages_objects_found). These avoid FINAL, which takes several times as long, so they find old versions of rows,
-- too. The outcome is read with FINAL, and its status is checked again; if old versions leave too few rows, the caller
-- asks again with more candidates.
SELECT
    source, destination, object, prepend, destination_object, toString(status) AS status, reason, bytes_in, bytes_out,
    run_id, toUnixTimestamp64Milli(recorded_at) AS recorded_ms
FROM storeside.objects FINAL
WHERE (source, destination, object, prepend) IN
(
    SELECT source, destination, object, prepend
    FROM (FOUND_BY_NAME UNION ALL FOUND_BY_RESULT)
    ORDER BY value DIRECTION, source DIRECTION, destination DIRECTION, object DIRECTION, prepend DIRECTION
    LIMIT {candidates:UInt32}
)
    AND ({status:String} = '' OR objects.status = {status:String})
    AND ({reason:String} = '' OR reason = {reason:String} OR JSONHas(facts, 'left_out', {reason:String}))
    AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
ORDER BY ORDER_VALUE source DIRECTION, destination DIRECTION, object DIRECTION, prepend DIRECTION
LIMIT {limit:UInt32}
