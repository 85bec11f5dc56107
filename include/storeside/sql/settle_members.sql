-- Records the failed and left-out members of shards that have results, as objects named shard/member with the shard's version.
INSERT INTO storeside.objects
    (source, destination, prepend, object, version, effect, destination_object, status, reason, bytes_in, bytes_out, run_id, options)
SELECT {source:String}, {destination:String}, {prepend:String}, object, version, {effect:String}, destination_object, if(left_out, 'left_out', 'failed'), reason, 0, 0, {run_id:String}, {options:String}
FROM storeside.job_failed_members(job = {job:String}, effect = {effect:String})
SETTINGS async_insert = 0
