"""Requests that several ranks run together, as one trace."""
