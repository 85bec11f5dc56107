-- How many exported utterances their readers would not find, and the first of them with the reason. The readers end a URL
-- at `?` or `#` (aistore.sdk.utils.parse_url), and divide it after the first of these archives' endings in this order that
-- it contains, where a slash follows (lhotse 1.33, lhotse.ais.batch_loader.AISBatchLoader). Readers of whole shards look
-- for `*.tar`.
SELECT countIf(reason != ''), minIf(object, reason != ''), argMinIf(reason, object, reason != '')
FROM
(
    WITH
        if(
            position(object, '.tar.gz') > 0,
            concat(splitByString('.tar.gz/', object)[1], '.tar.gz'), concat(splitByString('.tar/', object)[1], '.tar')
        ) AS asked
    SELECT
        object,
        multiIf(
            NOT endsWith(shard, '.tar'), 'the name of its shard does not end with .tar',
            {form:String} IN ('nemo_tarred', 'huggingface'), '',
            match(object, '[?#]'), 'readers end a URL at ? or #',
            asked != shard, concat('readers would look for it in the object ', asked),
            ''
        ) AS reason
    FROM EXPORTED
)
