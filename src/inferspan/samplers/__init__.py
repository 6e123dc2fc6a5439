"""Readings of the machine: NVIDIA GPUs, the process and its host, torch's CUDA allocator.

Each sampler turns readings into ``records.Sample``s; ``loop`` runs all of them on one daemon thread and keeps the newest
readings. A reading that failed or is not supported is absent, never zero.
"""

__all__: list[str] = []
