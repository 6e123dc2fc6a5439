"""Models to trace: made from their configuration without weights, and sample inputs for them."""
