"""The rules in a table: each is a function from figures to the causes it finds; one that lacks its figures finds none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .cause import Cause
from .figures import Figures
from .rules.batches import padding, stragglers, uneven_lengths
from .rules.collectives import collectives
from .rules.compilation import recompilation
from .rules.decode import draft_rejected, kv_growth, launch_bound, outside_steps, weights_bound
from .rules.machine import cpu_contention, low_gpu_use, throttled, too_many_threads
from .rules.memory import allocator_retries, high_memory, host_memory
from .rules.modules import expert_imbalance, slow_module
from .rules.prefill import long_prefill, slow_encoder
from .rules.program import preemptions, queue_time, slow_stage
from .rules.telemetry import samplers, telemetry
from .rules.transfers import host_syncs, offload_stall, transfer_bound

__all__ = ["RULES"]

RULES: tuple[Callable[[Figures], Iterator[Cause]], ...] = (
    launch_bound, weights_bound, kv_growth, outside_steps, draft_rejected,
    long_prefill, slow_encoder,
    slow_module, expert_imbalance,
    padding, uneven_lengths, stragglers,
    slow_stage, queue_time, preemptions,
    recompilation,
    offload_stall, transfer_bound, host_syncs, collectives,
    allocator_retries, high_memory, host_memory,
    throttled, low_gpu_use, cpu_contention, too_many_threads,
    telemetry, samplers,
)  # fmt: skip
