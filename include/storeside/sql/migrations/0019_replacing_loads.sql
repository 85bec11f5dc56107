-- Whether the load that began to publish an object replaces its older versions; see `settle` of the publication.
ALTER TABLE storeside.loads ADD COLUMN IF NOT EXISTS replaces Bool DEFAULT false;

-- Plans of interrupted runs are kept for a monthly schedule: with an overlap, the next run lists their objects again.
-- Stored plans keep the end that they have.
ALTER TABLE storeside.load_plan MODIFY TTL toDateTime(planned_at) + INTERVAL 35 DAY
    SETTINGS materialize_ttl_after_modify = 0;
