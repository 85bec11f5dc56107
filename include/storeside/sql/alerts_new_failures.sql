-- Whether an object failed in a run that did not fail in an earlier one.
SELECT count() > 0
FROM storeside.failures FINAL
WHERE run_id = {run:String} AND state = 'failed' AND (source, destination, object) NOT IN
(
    SELECT source, destination, object FROM storeside.failures FINAL
    WHERE run_id = {before:String} AND state = 'failed'
)
