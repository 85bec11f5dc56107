"""Runs a load: prepares and plans it, loads its batches, and retries objects that failed."""
