-- The volume of each task of a run, in rows if it loads rows, else in objects, and those of its last runs before.
-- The instances of a mapped task count together.
WITH
volumes AS
(
    SELECT
        run_id, splitByChar('[', task_id)[1] AS task, max(recorded_at) AS at,
        max(JSONHas(detail, 'rows')) AS has_rows,
        sum(if(JSONHas(detail, 'rows'), JSONExtractUInt(detail, 'rows'), done)) AS volume
    FROM storeside.runs FINAL
    WHERE startsWith(run_id, concat({dag:String}, '/')) AND dag_id = {dag:String} AND state IN ('done', 'partial')
        AND kind NOT IN ('validate', 'throughput', 'transform benchmark')
    GROUP BY run_id, task
),
latest AS (SELECT task, at, has_rows, volume FROM volumes WHERE run_id = {run:String})
SELECT
    l.task, any(l.has_rows), any(l.volume),
    arraySlice(
        arrayMap(v -> v.2, arrayReverseSort(v -> v.1, groupArrayIf((e.at, e.volume), e.at < l.at AND e.run_id != {run:String}))),
        1, {runs:UInt32}) AS before
FROM latest AS l
INNER JOIN volumes AS e ON e.task = l.task
WHERE {task:String} = '' OR l.task = {task:String}
GROUP BY l.task
ORDER BY l.task
