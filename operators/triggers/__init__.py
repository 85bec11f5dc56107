"""Airflow triggers: what a deferred task waits for."""
