"""Conflicts of dtypes in a traced program: fake tensors let some pass that real ones would not."""

from __future__ import annotations

import torch
from torch import fx

_ONE_DTYPE = frozenset(
    (
        "linear",
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "conv1d",
        "conv2d",
        "conv3d",
        "convolution",
        "scaled_dot_product_attention",
        "dot",
        "mv",
    )
)


def conflict(node: fx.Node) -> str | None:
    """What is wrong with the dtypes that an operation takes, None if nothing is."""
    operator = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    if operator in _ONE_DTYPE:
        inputs = node.all_input_nodes
        if operator == "scaled_dot_product_attention":
            inputs = inputs[:3]
    elif operator in ("index_put", "index_put_"):
        inputs = [entry for entry in (node.args[0], node.args[2]) if isinstance(entry, fx.Node)]
    else:
        return None
    values = [node.meta.get("val") for node in inputs]
    dtypes = dict.fromkeys(str(value.dtype).removeprefix("torch.") for value in values if isinstance(value, torch.Tensor))
    return f"{operator} takes values of one dtype, and gets {' and '.join(dtypes)}" if len(dtypes) > 1 else None
