-- Totals of a queue's events that earlier tries of a run loaded or skipped; the names are those of
-- storeside.events.load.Drained. Released messages count when they are received again. Messages in the dead-letter
-- queue are left out, because otherwise a task that is cleared after a redrive would always fail because of them.
SELECT *
FROM
(
    SELECT
        count() AS messages, sum(of_events) AS events, sum(of_loaded) AS loaded, sum(of_skipped) AS skipped,
        count() AS deleted
    FROM
    (
        SELECT
            message_id,
            countIf(name != '') AS of_events,
            countIf(last = 'loaded') AS of_loaded,
            countIf(last = 'skipped' AND name != '') AS of_skipped
        FROM
        (
            SELECT message_id, record, any(event) AS name, argMax(state, recorded_at) AS last
            FROM storeside.events
            WHERE queue = {queue:String} AND run_id = {run_id:String}
            GROUP BY message_id, record
        )
        GROUP BY message_id
        HAVING countIf(last IN ('released', 'dead')) = 0
    )
) AS settled
CROSS JOIN
(
    SELECT sum(of_rows) AS rows, sum(of_rejected) AS rejected, sum(of_bytes) AS bytes
    FROM
    (
        SELECT any(rows) AS of_rows, any(rejected) AS of_rejected, any(bytes) AS of_bytes
        FROM storeside.loads
        WHERE destination = {destination:String} AND bucket = {bucket:String} AND state = 'loaded'
            AND startsWith(run_id, concat({run_id:String}, '/'))
        GROUP BY key, version
    )
) AS published
