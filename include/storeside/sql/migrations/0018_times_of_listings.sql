-- The time before which an object had at least the recorded version. An event that is older is done with that version.
-- `recorded_at` does not show this, because an object may be overwritten while a task processes it. Rows of earlier
-- versions have no such time: they count for events with their version alone.
ALTER TABLE storeside.objects
    ADD COLUMN IF NOT EXISTS listed_at DateTime64(3) COMMENT 'when the listing with the version began; 0 if unknown' AFTER result_version;

ALTER TABLE storeside.listings
    COMMENT COLUMN side 'listing: listed_at is the time when the listing of the source began; source, before, after, now: listings; pending, known_bad, refused: the plan, all of it once there is planned; accepted: copies; reason, final: errors';
