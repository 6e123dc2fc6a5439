"""Observation of a model from outside: hooks and wrappers that append records and change nothing."""
