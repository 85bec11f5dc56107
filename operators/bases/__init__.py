"""Base classes of the operators: waiting, selections, bucket jobs, charts, deprecated arguments."""
