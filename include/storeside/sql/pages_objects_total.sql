-- How many outcomes a search finds, up to a limit (see pages_objects). With a status these are also outcomes that had
-- it in old versions of rows.
SELECT count() AS objects
FROM
(
    SELECT DISTINCT source, destination, object, prepend
    FROM (FOUND_BY_NAME UNION ALL FOUND_BY_RESULT)
    LIMIT {limit:UInt32}
)
