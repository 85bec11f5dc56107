"""AIStore itself: buckets and object names, the cluster map, jobs, ETLs and their pods, tokens, locks."""
