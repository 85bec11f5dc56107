"""Snapshots of Iceberg and Delta tables: their files, and their columns."""
