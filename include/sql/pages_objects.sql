-- Objects of the ledger with a text in their name or in their result's. The names are looked for without FINAL, which
-- costs several times as much; of those found the outcome is read with it.
SELECT
    source, destination, object, destination_object, toString(status) AS status, reason, bytes_in, bytes_out, run_id,
    toUnixTimestamp64Milli(recorded_at) AS recorded_ms
FROM storeside.objects FINAL
WHERE (source, destination, object) IN
(
    SELECT source, destination, object
    FROM storeside.objects
    WHERE (position(object, {text:String}) > 0 OR position(destination_object, {text:String}) > 0)
        AND ({bucket:String} = '' OR source = {bucket:String} OR destination = {bucket:String})
        AND ({status:String} = '' OR status = {status:String})
        AND ({all_dags:Bool} OR has({dags:Array(String)}, splitByChar('/', run_id)[1]))
        AND (source, destination, object) > ({after_source:String}, {after_destination:String}, {after_object:String})
    ORDER BY source, destination, object
    LIMIT 1 BY source, destination, object
    LIMIT {limit:UInt32}
)
    AND ({all_dags:Bool} OR has({dags:Array(String)}, splitByChar('/', run_id)[1]))
ORDER BY source, destination, object
