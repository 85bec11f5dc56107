"""S3, OCI Object Storage and AIStore as places that objects come from and go to."""
