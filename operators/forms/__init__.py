"""Form fields of DAGs, and the arguments of operators that read them."""
