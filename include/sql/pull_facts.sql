-- Facts that the probe wrote, one JSON object per audio object, pulled by ClickHouse from AIStore's S3 API.
-- AIStore quotes ETags differently in listings and in answers, so ClickHouse's comparison of the two is off.
INSERT INTO storeside_staging.{facts:Identifier}
SELECT _path, * FROM s3({url:String}, NOSIGN, 'JSONEachRow', {structure:String})
SETTINGS s3_validate_etag_on_read = 0, async_insert = 0
