"""Lists objects, and reads their content: ranges, streams, archives, compressed data."""
