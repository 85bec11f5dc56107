"""Differential fuzzing: the product and an independent reader are given the same generated files."""
