-- Totals of the tasks that move data and fit a filter.
SELECT
    count() AS tasks, sum(done) AS objects_done, sum(failed) AS objects_failed, sum(bytes_in) AS bytes_read,
    sum(bytes_out) AS bytes_written
FROM storeside.runs FINAL
WHERE ({all_dags:Bool} OR has({dags:Array(String)}, dag_id))
    AND ({dag:String} = '' OR positionCaseInsensitiveUTF8(dag_id, {dag:String}) > 0)
    AND ({kind:String} = '' OR kind = {kind:String})
    AND ({state:String} = '' OR state = {state:String})
    AND
    (
        {place:String} = '' OR positionCaseInsensitiveUTF8(source, {place:String}) > 0
        OR positionCaseInsensitiveUTF8(destination, {place:String}) > 0
    )
