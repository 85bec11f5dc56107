"""The AIStore client side: buckets and names, the cluster map, jobs, ETLs and their pods."""
