"""Fills staging tables with rows of objects by pull or push, and checks the rows."""
