"""Continuous batching of transformers: many requests share the steps of one loop."""
