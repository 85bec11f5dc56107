-- A search of pages_objects and pages_objects_total, which give it a condition for names.
SELECT source, destination, object, prepend, toInt64(SORTED) AS value
FROM storeside.objects
WHERE NAMED
    AND
    (
        {bucket:String} = '' OR positionCaseInsensitiveUTF8(source, {bucket:String}) > 0
        OR positionCaseInsensitiveUTF8(destination, {bucket:String}) > 0
    )
    AND ({status:String} = '' OR status = {status:String})
    AND ({of_source:String} = '' OR source = {of_source:String})
    AND ({of_destination:String} = '' OR destination = {of_destination:String})
    AND ({reason:String} = '' OR reason = {reason:String} OR JSONHas(facts, 'left_out', {reason:String}))
    AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
    -- rows after the cursor, written so that ClickHouse uses the primary key
    AND
    (
        {is_first:Bool}
        OR {by_name:Bool} AND (
            source BEYOND {after_source:String}
            OR source = {after_source:String} AND destination BEYOND {after_destination:String}
            OR source = {after_source:String} AND destination = {after_destination:String}
                AND object BEYOND {after_object:String}
            OR source = {after_source:String} AND destination = {after_destination:String}
                AND object = {after_object:String} AND prepend BEYOND {after_prepend:String}
        )
        OR NOT {by_name:Bool} AND (toInt64(SORTED), source, destination, object, prepend)
            BEYOND ({after_value:Int64}, {after_source:String}, {after_destination:String}, {after_object:String}, {after_prepend:String})
    )
ORDER BY ORDER_VALUE source DIRECTION, destination DIRECTION, object DIRECTION, prepend DIRECTION
LIMIT {candidates:UInt32}
