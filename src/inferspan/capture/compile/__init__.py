"""Detects compiled code, and hides our own code from torch.compile."""
