"""The operators, one module for each system or task."""
