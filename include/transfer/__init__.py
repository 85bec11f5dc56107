"""From S3 to ClickHouse."""
