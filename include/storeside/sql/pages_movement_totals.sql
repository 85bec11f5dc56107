-- Totals of the tasks that move data and fit a filter. Rows that are validated, and requests and rounds of measurements,
-- are no objects that moved. An object that failed for good before is left out by many tasks, so these are counted.
SELECT
    count() AS tasks, sumIf(done, is_moved) AS objects_done, sumIf(failed, is_moved) AS objects_failed,
    sumIf(bytes_in, is_moved) AS bytes_read, sumIf(bytes_out, is_moved) AS bytes_written,
    countIf(is_moved AND JSONExtractUInt(detail, 'known_bad') > 0) AS tasks_with_known
FROM (SELECT *, kind NOT IN ('validate', 'throughput', 'transform benchmark') AS is_moved FROM storeside.runs FINAL)
WHERE ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    AND ({dag:String} = '' OR positionCaseInsensitiveUTF8(dag_id, {dag:String}) > 0)
    AND ({kind:String} = '' OR kind = {kind:String})
    AND ({state:String} = '' OR state = {state:String})
    AND
    (
        {place:String} = '' OR positionCaseInsensitiveUTF8(source, {place:String}) > 0
        OR positionCaseInsensitiveUTF8(destination, {place:String}) > 0
    )
