-- Objects in the ledger whose names, or whose results' names, begin with a text or contain it. `stem` is the text
-- without an extension. A result has the name of its object except for the extension, so a search of the objects'
-- names is enough. The search avoids FINAL, which takes several times as long, and so allows for up to four unmerged
-- versions of a row. The outcome is read with FINAL, and its status is checked again.
SELECT
    source, destination, object, destination_object, toString(status) AS status, reason, bytes_in, bytes_out, run_id,
    toUnixTimestamp64Milli(recorded_at) AS recorded_ms
FROM storeside.objects FINAL
WHERE (source, destination, object) IN
(
    SELECT source, destination, object
    FROM storeside.objects
    WHERE if({anywhere:Bool}, position(object, {stem:String}) > 0, startsWith(object, {stem:String}))
        AND if(
            {anywhere:Bool},
            position(object, {text:String}) > 0 OR position(destination_object, {text:String}) > 0,
            startsWith(object, {text:String}) OR startsWith(destination_object, {text:String})
        )
        AND ({bucket:String} = '' OR position(source, {bucket:String}) > 0 OR position(destination, {bucket:String}) > 0)
        AND ({status:String} = '' OR status = {status:String})
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
            )
            OR NOT {by_name:Bool} AND (toInt64(SORTED), source, destination, object)
                BEYOND ({after_value:Int64}, {after_source:String}, {after_destination:String}, {after_object:String})
        )
    ORDER BY ORDER_VALUE source DIRECTION, destination DIRECTION, object DIRECTION
    LIMIT {limit:UInt32} * 4
)
    AND ({status:String} = '' OR objects.status = {status:String})
    AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
ORDER BY ORDER_VALUE source DIRECTION, destination DIRECTION, object DIRECTION
LIMIT {limit:UInt32}
