-- A job may be given something of an object beside the object itself, such as the segments of a recording. The outcome
-- belongs to both.
ALTER TABLE storeside.objects
    ADD COLUMN IF NOT EXISTS given String COMMENT 'digest of what the job was given of the object beside the object itself';

ALTER TABLE storeside.listings
    COMMENT COLUMN side 'listing: listed_at is the time when the listing of the source began; source, before, after, now: listings; given: objects of which the job is given something beside the object, with its digest as version; stray: names of which something is given, and that are no objects, with the number of entries as size; held: copies of remote objects in the cluster, with their versions; pending, known_bad, forgiven, refused: the plan, all of it once there is planned; forgiven: failures that a user accepted; accepted: copies; changed: results of other versions than planned; announced: results that a list names, with the version of the list as reason, and a row without a result for each list that was read; incomplete: objects whose list names a result that is not stored; reason, final: errors; left_out: objects that the transformer left out; member, left_out_member: members of shards without a result; reported: shards that a server delivered';
