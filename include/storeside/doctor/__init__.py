"""Checks connections and permissions from the current machine: what works, what does not, and the remedy."""
