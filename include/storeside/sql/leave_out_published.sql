-- Removes rows from a run's staging table that another run has published since they were staged: those of the same
-- version of a recording with the same result, with all facts. The manifest then has each of them once.
ALTER TABLE storeside_staging.{staging:Identifier} DELETE WHERE object IN
(
    SELECT s.object
    FROM storeside_staging.{staging:Identifier} AS s
    INNER JOIN
    (
        SELECT object, checksum, source_version, silence_share FROM speech.manifest FINAL
        WHERE bucket = {bucket:String} AND object IN (SELECT object FROM storeside_staging.{staging:Identifier})
    ) AS p ON p.object = s.object
    WHERE p.checksum = s.checksum AND p.source_version = s.source_version
        AND (p.silence_share IS NOT NULL OR s.silence_share IS NULL)
)
SETTINGS mutations_sync = 1
