"""Airflow's processes, with LocalExecutor and with Celery, and a client of its API."""
