"""Code that runs inside the storage cluster, beside each target."""
