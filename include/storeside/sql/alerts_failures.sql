-- The first objects that failed in a run, and the number of all.
SELECT object, reason, count() OVER () AS objects
FROM storeside.failures FINAL
WHERE run_id = {run:String} AND state = 'failed'
ORDER BY object
LIMIT {limit:UInt32}
