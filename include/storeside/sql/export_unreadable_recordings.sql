-- How many exported recordings no reader would find, and the first of them with the reason. The readers end a URL at `?`
-- or `#` (aistore.sdk.utils.parse_url).
SELECT countIf(reason != ''), minIf(object, reason != ''), argMinIf(reason, object, reason != '')
FROM
(
    SELECT object, if(match(object, '[?#]'), 'readers end a URL at ? or #', '') AS reason
    FROM EXPORTED
)
