"""Checks of connections and permissions from where they run: what works, what does not, and what to do."""
