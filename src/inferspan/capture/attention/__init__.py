"""Attention weights: taken where a module returns them, recomputed from queries and keys where a fused kernel computes attention."""
