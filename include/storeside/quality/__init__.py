"""Validates streamed frames with any Great Expectations suite."""
