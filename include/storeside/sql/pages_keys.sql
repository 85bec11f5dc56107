-- Object versions in the ledger of loads whose keys begin with a text or contain it; see pages_objects.
SELECT
    destination, bucket, key, version, toString(load_id) AS load_id, toString(state) AS status, reason, rows, rejected,
    bytes, run_id, toUnixTimestamp64Milli(toDateTime64(recorded_at, 3)) AS recorded_ms
FROM storeside.loads FINAL
WHERE (destination, bucket, key, version) IN
(
    SELECT destination, bucket, key, version
    FROM storeside.loads
    WHERE if({anywhere:Bool}, position(key, {text:String}) > 0, startsWith(key, {text:String}))
        AND
        (
            {bucket:String} = '' OR positionCaseInsensitiveUTF8(bucket, {bucket:String}) > 0
            OR positionCaseInsensitiveUTF8(destination, {bucket:String}) > 0
        )
        AND ({status:String} = '' OR state = if({status:String} = 'done', 'loaded', {status:String}))
        AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
        AND
        (
            {is_first:Bool}
            OR {by_name:Bool} AND (
                destination BEYOND {after_destination:String}
                OR destination = {after_destination:String} AND bucket BEYOND {after_bucket:String}
                OR destination = {after_destination:String} AND bucket = {after_bucket:String}
                    AND key BEYOND {after_key:String}
                OR destination = {after_destination:String} AND bucket = {after_bucket:String}
                    AND key = {after_key:String} AND version BEYOND {after_version:String}
            )
            OR NOT {by_name:Bool} AND (toInt64(SORTED), destination, bucket, key, version)
                BEYOND ({after_value:Int64}, {after_destination:String}, {after_bucket:String}, {after_key:String}, {after_version:String})
        )
    ORDER BY ORDER_VALUE destination DIRECTION, bucket DIRECTION, key DIRECTION, version DIRECTION
    LIMIT {candidates:UInt32}
)
    AND ({status:String} = '' OR state = if({status:String} = 'done', 'loaded', {status:String}))
    AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
ORDER BY ORDER_VALUE destination DIRECTION, bucket DIRECTION, key DIRECTION, version DIRECTION
LIMIT {limit:UInt32}
