"""The embedded stack: every component of Storeside as supervised processes on loopback."""
