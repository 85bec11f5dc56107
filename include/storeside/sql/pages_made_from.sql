-- Copies and transforms whose result, or one of whose several results, is an object.
SELECT
    source, destination, if(result_of = '', objects.object, result_of) AS object, destination_object,
    toString(status) AS status, reason, version, effect, bytes_in,
    bytes_out, run_id, toUnixTimestamp64Milli(recorded_at) AS recorded_ms
FROM storeside.objects
WHERE destination = {bucket:String} AND destination_object = {object:String}
    AND ({all_dags:Bool} OR has({dags:Array(String)}, substring(run_id, 1, position(run_id, '/') - 1)))
ORDER BY recorded_at DESC
LIMIT 1 BY source, destination, objects.object, prepend
LIMIT 10
