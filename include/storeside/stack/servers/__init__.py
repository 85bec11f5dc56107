"""The servers of the stack, except Airflow: AIStore and AuthN, ClickHouse, S3 and SQS, HSDS, PostgreSQL, Redis."""
