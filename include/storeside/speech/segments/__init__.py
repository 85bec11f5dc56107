"""Segments and texts of recordings from files of corpora: read, checked, and matched with the recordings."""
