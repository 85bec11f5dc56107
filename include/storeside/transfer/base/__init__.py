"""Errors, columns and names that all parts of a load share."""
