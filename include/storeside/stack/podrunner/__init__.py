"""A small Kubernetes API that runs pods as plain processes on this machine."""
