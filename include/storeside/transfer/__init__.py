"""Transfers from S3 to ClickHouse."""
