"""Checks of connections and permissions from the current machine: each finding has a result and a remedy."""
