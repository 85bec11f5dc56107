-- The standing problems that an alert has sent.
SELECT notifier, condition, problem, level, run_id, (toFloat64(now64(3)) - toFloat64(sent_at)) / 3600 AS hours,
    toUnixTimestamp64Milli(sent_at) AS sent_ms
FROM storeside.alerts FINAL
WHERE alert = {alert:String} AND state = 'sent'
