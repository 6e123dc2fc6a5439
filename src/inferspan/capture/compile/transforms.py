"""Whether the program is being traced, compiled or transformed rather than run.

Under ``torch.compile``, export, ``jit.trace``, FX, ``torch.func`` or fake tensors a forward pass is no request, and any operation
of ours would end up in the user's graph. One inside a backward pass is a part of that. Every entry point of ours checks this first, and
does nothing then.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from .state import is_compiling, loaded

__all__ = ["is_capturing", "is_transforming"]

_TRACING_MODES = (
    ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    ("torch._subclasses.functional_tensor", "FunctionalTensorMode"),
    ("torch.fx.experimental.proxy_tensor", "ProxyTorchDispatchMode"),
)

_mode_of: Any = torch._C._get_dispatch_mode
_keys: Any = torch._C._TorchDispatchModeKey
_FAKE, _PROXY, _FUNCTIONAL = _keys.FAKE, _keys.PROXY, _keys.FUNCTIONAL


def _has_tracing_mode() -> bool:
    """Whether a dispatch mode that traces graphs or fakes tensors is active; a counting mode of the user is not one."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = tuple(mode for module, name in _TRACING_MODES if (mode := loaded(module, name)) is not None)
    return any(isinstance(mode, modes) for mode in _get_current_dispatch_mode_stack())


def is_transforming() -> bool:
    """Whether the running forward pass is a trace, a transform or a simulation of the model, or computes again what a checkpoint needs."""
    # In one function: each request comes here, and what each further one costs is that nothing of it is in the caches.
    inner: Any = torch._C
    return bool(
        (torch.compiler.is_compiling() and is_compiling())
        or inner._current_graph_task_id() >= 0
        or inner._get_tracing_state() is not None
        or inner._functorch.peek_interpreter_stack() is not None
        # torch's is_fx_tracing() logs a warning at its first call.
        or getattr(sys.modules.get("torch.fx._symbolic_trace"), "_is_fx_tracing_flag", False)
        or (inner._len_torch_dispatch_stack() and _has_tracing_mode())
        # These live in places of their own, outside of the program's stack of modes.
        or _mode_of(_FAKE) is not None
        or _mode_of(_PROXY) is not None
        or _mode_of(_FUNCTIONAL) is not None
    )


def is_capturing() -> bool:
    """Whether the current CUDA stream is capturing a graph; never initialises CUDA."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
