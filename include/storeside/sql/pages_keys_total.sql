-- How many object versions a search finds in the ledger of loads, up to a limit (see pages_keys).
SELECT count() AS objects
FROM
(
    SELECT DISTINCT destination, bucket, key, version
    FROM storeside.loads
    WHERE if({anywhere:Bool}, position(key, {text:String}) > 0, startsWith(key, {text:String}))
        AND
        (
            {bucket:String} = '' OR positionCaseInsensitiveUTF8(bucket, {bucket:String}) > 0
            OR positionCaseInsensitiveUTF8(destination, {bucket:String}) > 0
        )
        AND ({status:String} = '' OR state = if({status:String} = 'done', 'loaded', {status:String}))
        AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
    LIMIT {limit:UInt32}
)
