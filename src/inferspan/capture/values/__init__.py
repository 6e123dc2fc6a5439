"""Counts and moments of the values of tensors, where the values are."""
