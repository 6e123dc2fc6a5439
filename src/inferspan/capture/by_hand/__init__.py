"""The adapter of decoding loops that the user has written."""
