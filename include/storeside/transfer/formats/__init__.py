"""The columns, the rows and the shape that objects of each format state."""
