"""The pool of worker processes and their decoders: each object's way from AIStore to its result."""
