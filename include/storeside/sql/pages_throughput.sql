-- Objects and bytes that finished tasks moved per second of task time, in time slices of the last `hours` hours. Tasks
-- that follow a queue are left out, because they wait most of their time; see also pages_movement_totals.
SELECT
    toUnixTimestamp(toStartOfInterval(recorded_at, toIntervalSecond({slice:UInt32}))) AS at,
    sum(done) / sum(seconds) AS objects_per_second,
    sum(bytes_in) / sum(seconds) AS bytes_per_second
FROM storeside.runs FINAL
WHERE ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    AND ({dag:String} = '' OR positionCaseInsensitiveUTF8(dag_id, {dag:String}) > 0)
    AND kind NOT IN ('validate', 'throughput', 'transform benchmark', 'events') AND state != 'running' AND done > 0 AND seconds > 0
    AND recorded_at > now64(3) - toIntervalHour({hours:UInt32})
GROUP BY at
ORDER BY at
LIMIT 200
