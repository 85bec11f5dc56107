"""AIStore ETL jobs: submit, follow, reconcile, retry."""
