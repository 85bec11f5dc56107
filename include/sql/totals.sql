-- What a run did on a bucket pair.
SELECT
    countIf(status = 'done') AS done,
    countIf(status = 'failed') AS failed,
    sumIf(bytes_in, status = 'done') AS bytes_in,
    sumIf(bytes_out, status = 'done') AS bytes_out
FROM storeside.objects FINAL
WHERE source = {source:String} AND destination = {destination:String} AND run_id = {run_id:String}
