"""Code that runs inside the storage cluster, next to each AIStore target."""
