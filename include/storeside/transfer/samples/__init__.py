"""Samples of objects: the format that they show, and the columns of a table for them."""
