"""Loads the objects of S3 event notifications that arrive in SQS queues."""
