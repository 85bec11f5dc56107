"""S3 and AIStore as places that objects come from and go to."""
