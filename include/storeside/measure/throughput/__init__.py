"""Throughput of an AIStore cluster: load from `aisloader`, figures from the nodes, a verdict and a chart."""
