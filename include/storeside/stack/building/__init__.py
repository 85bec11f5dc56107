"""Builds and installs the binaries of Go modules, and packages, into the stack's cache."""
