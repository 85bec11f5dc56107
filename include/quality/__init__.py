"""Great Expectations over manifests and ClickHouse tables."""
