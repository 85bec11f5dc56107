"""Loads S3 objects into ClickHouse tables, each object version exactly once."""
