"""Devices of other vendors than NVIDIA, with the metrics of the same conventions."""
