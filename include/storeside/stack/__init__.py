"""The embedded stack: all servers that Storeside needs, as supervised processes on the loopback address."""
