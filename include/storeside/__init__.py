"""The engine: plain Python that works from a REPL, without Airflow."""
