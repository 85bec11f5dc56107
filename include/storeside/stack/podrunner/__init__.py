"""A small Kubernetes API that runs pods as plain processes of this machine."""
