-- Progress of one try of a running transfer: earlier tries, and other tasks of the run that load other objects of the
-- bucket into the table, do not count. No row before its first object is loaded or failed.
SELECT
    countIf(state = 'loaded') AS loaded,
    countIf(state = 'failed') AS failed,
    sumIf(loads.bytes, state = 'loaded') AS bytes,
    sumIf(loads.bytes, state = 'failed') AS bytes_failed
FROM storeside.loads
WHERE destination = {destination:String} AND bucket = {bucket:String} AND (run_id = {run:String} OR startsWith(run_id, concat({run:String}, '/')))
    AND match(key, {keys:String}) AND recorded_at >= fromUnixTimestamp64Milli({started:Int64})
HAVING loaded + failed > 0
