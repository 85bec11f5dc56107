-- Tasks that are recorded as running, and that a later run of the same task has replaced: it has ended, with the same
-- source and destination.
SELECT running.run_id AS run_id, running.task_id AS task_id
FROM
(
    SELECT run_id, dag_id, task_id, source, destination, recorded_at
    FROM storeside.runs FINAL
    WHERE state = 'running' AND ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
) AS running
INNER JOIN
(
    SELECT dag_id, task_id, source, destination, max(recorded_at) AS ended
    FROM storeside.runs FINAL
    WHERE state != 'running' AND ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    GROUP BY dag_id, task_id, source, destination
) AS later USING (dag_id, task_id, source, destination)
WHERE later.ended > running.recorded_at
