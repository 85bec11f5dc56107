"""Isolates processes with Landlock, seccomp and resource limits."""
