"""Copies through the worker, for endpoints between which no storage system copies."""
