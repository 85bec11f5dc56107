-- Progress of a running transfer; no row before its first object is loaded or failed.
SELECT
    countIf(state = 'loaded') AS loaded,
    countIf(state = 'failed') AS failed,
    sumIf(bytes, state = 'loaded') AS bytes,
    sumIf(rows, state = 'loaded') AS rows
FROM storeside.loads
WHERE destination = {destination:String} AND bucket = {bucket:String} AND (run_id = {run:String} OR startsWith(run_id, concat({run:String}, '/')))
HAVING loaded + failed > 0
