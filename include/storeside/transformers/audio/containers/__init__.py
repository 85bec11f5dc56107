"""The length that audio containers declare, read from their headers without libav."""
