"""``python -m benchmarks.requests``: what whole requests cost with export, as a time for each request, step and module call."""
