"""Storeside on a Kubernetes cluster: one that is started for the tests, or a user's own: ``make k8s-test``."""
