"""What the pages show: bounded reads of Storeside's tables, and what is made of them. No Airflow, no HTML."""
