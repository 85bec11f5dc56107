-- Objects of the ledger whose names, or whose results' names, begin with a text or have it anywhere. `stem` is the text
-- without an extension: results are called like their objects but for that, so it is enough to look at the objects'
-- names. They are looked for without FINAL, which costs several times as much, and so up to four versions of a row
-- that are not merged yet are allowed for; the outcome is read with it, and its status asked for again.
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
        AND ({bucket:String} = '' OR source = {bucket:String} OR destination = {bucket:String})
        AND ({status:String} = '' OR status = {status:String})
        AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
        -- what comes after the cursor, written so that the primary key is used
        AND
        (
            source > {after_source:String}
            OR source = {after_source:String} AND destination > {after_destination:String}
            OR source = {after_source:String} AND destination = {after_destination:String} AND object > {after_object:String}
        )
    ORDER BY source, destination, object
    LIMIT {limit:UInt32} * 4
)
    AND ({status:String} = '' OR objects.status = {status:String})
    AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
ORDER BY source, destination, object
LIMIT {limit:UInt32}
