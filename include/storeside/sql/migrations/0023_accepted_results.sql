-- An object that a transform cannot process is tried again under other options, and a user may accept that it has no result.
ALTER TABLE storeside.objects
    ADD COLUMN IF NOT EXISTS options String COMMENT 'digest of the options that decide, beside the effect, whether an object can be processed',
    ADD COLUMN IF NOT EXISTS accepted_by String COMMENT 'who accepted that the object has no result',
    ADD COLUMN IF NOT EXISTS accepted_at DateTime64(3) COMMENT 'when, if accepted_by is set';

ALTER TABLE storeside.listings
    COMMENT COLUMN side 'listing: listed_at is the time when the listing of the source began; source, before, after, now: listings; held: copies of remote objects in the cluster, with their versions; pending, known_bad, forgiven, refused: the plan, all of it once there is planned; forgiven: failures that a user accepted; accepted: copies; changed: results of other versions than planned; reason, final: errors';
