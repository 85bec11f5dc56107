"""The request of a load: its source, its table, and its options."""
