"""Throughput of an AIStore cluster: load by `aisloader`, figures from the nodes, a verdict, a chart."""
