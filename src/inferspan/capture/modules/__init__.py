"""Observing the calls of a model's modules: selection, slots and hooks, shapes, statistics of outputs."""
