"""Datasets of HSDS to Parquet and back, in slabs of bounded size."""
