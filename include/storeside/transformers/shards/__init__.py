"""Tar shards: transforms their members, and makes shards of objects."""
