"""Receives AIStore's requests over HTTP and WebSocket, and refuses those of others."""
