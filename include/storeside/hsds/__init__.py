"""Exports of HSDS datasets to Parquet and imports into HSDS, in slabs of bounded size."""
