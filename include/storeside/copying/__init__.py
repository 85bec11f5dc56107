"""Copies that pass through the worker because no storage system can make them: stores, multipart, the mover."""
