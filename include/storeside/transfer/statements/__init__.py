"""Composes the statements with which ClickHouse reads objects into a table."""
