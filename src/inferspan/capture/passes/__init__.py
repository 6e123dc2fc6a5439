"""Requests of several forward passes: calls of pipelines, ``encode()`` of sentence-transformers; and facts of single passes."""
