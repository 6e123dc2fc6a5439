"""Ranks that run each request together, as in tensor parallelism: which they are, and what the first tells the others about a request."""
