-- The number of the finished tasks of a run, the sums of their counts, and the first objects that failed before it.
WITH finished AS
(
    SELECT task_id, done, failed, detail, recorded_at FROM storeside.runs FINAL
    WHERE run_id = {run:String} AND state != 'running' AND kind NOT IN ('validate', 'throughput', 'transform benchmark')
)
SELECT
    count() AS tasks, sum(done) AS objects_done, sum(failed) AS objects_failed,
    sum(JSONExtractUInt(detail, 'known_bad')) AS known_bad,
    (
        SELECT groupArray(known.1)
        FROM
        (
            WITH JSONExtract(detail, 'known_failures', 'Array(Array(String))') AS all_known
            SELECT arrayJoin(arrayZip(all_known, arrayEnumerate(all_known))) AS known FROM finished
            ORDER BY recorded_at, task_id, known.2
            LIMIT {limit:UInt32}
        )
    ) AS known_failures
FROM finished
