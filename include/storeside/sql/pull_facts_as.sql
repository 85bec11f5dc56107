-- Facts of a run, one JSON object per audio object, which ClickHouse pulls from AIStore's S3 API with the token of a named
-- collection.
-- The worker reads keys with these characters, because it addresses an object literally: ClickHouse removes
-- `?versionId=` from a key and reads another object. Facts are never compressed, even if a name such as `x.gz`
-- suggests it to ClickHouse. AIStore quotes ETags differently in listings and answers, so ClickHouse must not compare
-- them. An object with several rows is not what a transformer writes: the worker reads it, and names it in an error.
INSERT INTO storeside_staging.{facts:Identifier}
SELECT _path, * FROM s3(
    {collection:Identifier}, url = {url:String}, format = 'JSONEachRow', structure = {structure:String},
    compression_method = 'none'
)
WHERE NOT match(_path, '[?*{}]')
QUALIFY count() OVER (PARTITION BY _path) = 1
SETTINGS s3_validate_etag_on_read = 0, async_insert = 0
