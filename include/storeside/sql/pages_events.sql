-- Events of a queue in their latest state, newest first, starting after a cursor.
SELECT
    message_id, record, event, bucket, key, size, receives, toString(state) AS state, reason, run_id,
    toUnixTimestamp64Milli(sent_at) AS sent_ms, toUnixTimestamp64Milli(toDateTime64(recorded_at, 3)) AS recorded_ms
FROM storeside.events FINAL
WHERE queue = {queue:String}
    AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
    AND ({state:String} = '' OR state = {state:String})
    AND ({text:String} = '' OR position(key, {text:String}) > 0 OR position(bucket, {text:String}) > 0)
    AND
    (
        {is_first:Bool}
        OR (recorded_ms, message_id, record) BEYOND ({before_ms:Int64}, {before_message:String}, {before_record:UInt32})
    )
ORDER BY recorded_ms DIRECTION, message_id DIRECTION, record DIRECTION
LIMIT {limit:UInt32}
