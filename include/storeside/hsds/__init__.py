"""Exports HSDS datasets to Parquet and imports data into HSDS, in slabs of bounded size."""
