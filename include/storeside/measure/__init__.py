"""Measurements of storage: backends, multipart settings, and the throughput of a cluster."""
