-- The last measurements of the same load on the same cluster, without regressions, since the last one marked `first`.
WITH same AS
(
    SELECT began, mean, verdict FROM storeside.throughput_runs FINAL
    WHERE cluster = {cluster:String} AND nodes = {nodes:UInt32} AND bucket = {bucket:String}
        AND workload = {workload:String} AND object_bytes = {object_bytes:UInt64}
        AND dataset_bytes = {dataset_bytes:UInt64} AND prefix = {prefix:String}
        AND concurrency = {concurrency:UInt32} AND loaders = {loaders:UInt16}
        AND measurement != {measurement:String}
)
SELECT count(), medianOrNull(mean)
FROM
(
    SELECT mean FROM same
    WHERE verdict != 'regression' AND began >= (SELECT max(began) FROM same WHERE verdict = 'first')
    ORDER BY began DESC
    LIMIT {last:UInt32}
)
