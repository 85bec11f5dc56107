"""S3 event notifications on SQS."""
