"""Storage measurements: backends, multipart settings, the throughput of a cluster."""
