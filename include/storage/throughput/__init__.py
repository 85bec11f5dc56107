"""How fast an AIStore cluster reads and writes: load by `aisloader`, figures from the nodes, a verdict, a chart."""
