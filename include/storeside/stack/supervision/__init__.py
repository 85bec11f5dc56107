"""The stack's processes: what describes, starts, watches, probes and ends them."""
