"""Publishes staged rows exactly once, and then handles the objects of the source."""
