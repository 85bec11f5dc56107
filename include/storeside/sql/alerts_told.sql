-- What an alert has told and what still stands.
SELECT notifier, condition, problem, level, run_id, (toFloat64(now64(3)) - toFloat64(told_at)) / 3600 AS hours,
    toUnixTimestamp64Milli(told_at) AS told_ms
FROM storeside.alerts FINAL
WHERE alert = {alert:String} AND state = 'told'
