"""Backward passes of recorded requests, and statistics of the gradients in them."""
