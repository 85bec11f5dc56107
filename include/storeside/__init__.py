"""The engine: plain Python that works from a REPL, without Airflow."""

__version__ = "0.2.0"
