"""Airflow hooks: connections to the systems that Storeside works with."""
