"""Names of the parameters of ``forward``."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from torch import nn

from inferspan.capture.signatures import positional_names


class Plain(nn.Module):
    """Takes two arguments and a keyword."""

    def forward(self, x: Any, mask: Any = None, *, scale: float = 1.0) -> Any:
        return x


class Several(nn.Module):
    """Takes one argument and then any number."""

    def forward(self, x: Any, *more: Any, **options: Any) -> Any:
        return x


@pytest.mark.parametrize(("kind", "names"), [(Plain, ("x", "mask")), (Several, ("x",)), (object, ())])
def test_names_of_positional_parameters(kind: type, names: tuple[str, ...]) -> None:
    """They come in order, without keywords and what takes several; none for a class without ``forward``."""
    assert positional_names(kind) == names


def test_a_class_is_not_kept_alive() -> None:
    """A class that was looked at once can be collected."""
    kind: Any = type("Once", (nn.Module,), {"forward": lambda self, x: x})
    assert positional_names(kind) == ("x",)
    kept = weakref.ref(kind)
    del kind
    gc.collect()
    assert kept() is None
