-- Why an object failed, which decides whether the next run tries it again. Rows without it, of version 0.1.0 and of tasks
-- of that version while an upgrade is rolled out, get it from what their reasons begin with.
ALTER TABLE storeside.loads
    ADD COLUMN IF NOT EXISTS kind Enum8('none' = 0, 'object' = 1, 'access' = 2, 'transient' = 3) DEFAULT multiIf(
            state != 'failed', 'none',
            startsWith(reason, 'S3 denies the access to it (403): allow s3:GetObject on it'), 'access',
            startsWith(reason, 'it cannot be read for now'), 'transient',
            'object')
        COMMENT 'none: not failed; object: for good; access, transient: the next run tries it again' AFTER state;
