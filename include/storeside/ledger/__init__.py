"""Records the outcome of each object version in ClickHouse."""
