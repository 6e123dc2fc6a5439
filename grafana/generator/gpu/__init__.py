"""The dashboard of GPUs and hosts."""
