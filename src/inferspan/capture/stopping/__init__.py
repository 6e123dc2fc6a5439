"""Stopping criteria that the user passes to ``generate()``: ``inferspan.stop_on``."""
