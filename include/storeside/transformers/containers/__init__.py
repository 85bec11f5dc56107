"""What audio containers state about their own length, read from their headers without libav."""
