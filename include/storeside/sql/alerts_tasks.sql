-- The first finished tasks of a run with their counts. Rows are -1 where a task loads none.
SELECT
    task_id, done, failed, skipped, bytes_in,
    if(JSONHas(detail, 'rows'), JSONExtractInt(detail, 'rows'), -1) AS rows,
    JSONExtractUInt(detail, 'known_bad') AS known_bad
FROM storeside.runs FINAL
WHERE run_id = {run:String} AND state != 'running' AND kind NOT IN ('validate', 'throughput', 'transform benchmark')
ORDER BY recorded_at, task_id
LIMIT {limit:UInt32}
