"""Loads the objects of one listing into the tables that their keys name, each table by a separate load."""
