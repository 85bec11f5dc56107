"""Validation of manifests and ClickHouse tables with Great Expectations."""
