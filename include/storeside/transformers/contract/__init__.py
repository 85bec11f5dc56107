"""Formats that the server, the workers and readers outside the cluster share: names, jobs, failures, tar archives."""
