"""Recordings that are on a server."""
