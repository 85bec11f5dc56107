"""The destination tables of loads, on one server or a cluster."""
