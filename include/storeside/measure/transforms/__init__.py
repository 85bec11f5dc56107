"""The published benchmark of transforms on any cluster: servers, channels, and a client for comparison."""
