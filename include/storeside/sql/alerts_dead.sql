-- The newest events of a queue that were sent to its dead-letter queue, with their reasons.
SELECT if(key = '', message_id, concat('s3://', bucket, '/', key)) AS object, reason
FROM storeside.events FINAL
WHERE queue = {queue:String} AND state = 'dead'
ORDER BY recorded_at DESC
LIMIT {limit:UInt32}
