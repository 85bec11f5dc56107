"""The data of the pages: bounded reads of Storeside's tables, and their evaluation. No Airflow, no HTML."""
