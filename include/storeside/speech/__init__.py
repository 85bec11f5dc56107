"""The speech pipeline: its manifest, the manifest's suites, and the settlement of its runs with their queue."""
