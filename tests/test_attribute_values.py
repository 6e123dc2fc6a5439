"""Values that can be sent, out of whatever callers hand us."""

from __future__ import annotations

import enum
from typing import Any

import numpy
import pytest
import torch

from inferspan.attribute_values import AttributeLimits, exportable, exportable_attributes, exportable_text, shape_attributes


class _Word(str, enum.Enum):
    A = "a"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (3, 3),
        (-(2**63), -(2**63)),
        (2**63, None),
        (0.5, 0.5),
        (float("nan"), None),
        (float("-inf"), None),
        ("text", "text"),
        ("lone \ud800 surrogate", "lone ? surrogate"),
        (_Word.A, "a"),
        (numpy.float32(0.5), 0.5),
        (numpy.int64(7), 7),
        ([1, 2], [1, 2]),
        ((0.5, 1.5), [0.5, 1.5]),
        ([1.0, float("inf")], None),
        ([1e308, 1e308], [1e308, 1e308]),
        ([1, 2**70], None),
        ([1, "a"], None),
        ([numpy.float64(1.0), numpy.float64(2.0)], [1.0, 2.0]),
        ([], []),
        (None, None),
        ({"a": 1}, None),
        (b"bytes", None),
    ],
)
def test_exportable(value: object, expected: object) -> None:
    """A value becomes plain, or nothing where an exporter could not encode it."""
    found: Any = exportable(value)
    assert (found, type(found)) == (expected, type(expected))
    if isinstance(found, list):
        assert {type(part) for part in found} <= {type(part) for part in expected}  # type: ignore[attr-defined]


def test_attributes_and_texts() -> None:
    """What cannot be sent is left out of a mapping, keys are made encodable as well."""
    assert exportable_attributes({"a": 1, "b": float("nan"), "c\ud800": "x"}) == {"a": 1, "c?": "x"}
    assert exportable_text("naïve \ud83d") == "naïve ?"


def test_shapes_as_text() -> None:
    """Sizes joined by x, ``scalar`` without any, dtypes without the prefix; nothing for nothing."""
    described = (((2, 3), torch.float16), ((), torch.int64))
    assert shape_attributes(described, "shapes", "dtypes") == {"shapes": ("2x3", "scalar"), "dtypes": ("float16", "int64")}
    assert shape_attributes((), "shapes", "dtypes") == {}


@pytest.mark.parametrize(
    ("count", "length", "expected", "dropped"),
    [
        (None, None, {"a": "long", "b": 1, "c": ("long", "x")}, 0),
        (2, None, {"b": 1, "c": ("long", "x")}, 1),
        (None, 2, {"a": "lo", "b": 1, "c": ("lo", "x")}, 0),
        (1, 2, {"c": ("lo", "x")}, 2),
        (0, 0, {}, 3),
    ],
)
def test_limits_of_attributes(count: int | None, length: int | None, expected: dict[str, Any], dropped: int) -> None:
    """The latest attributes stay, texts and the texts in lists are cut, and what is left out is counted."""
    assert AttributeLimits(count, length).apply({"a": "long", "b": 1, "c": ("long", "x")}) == (expected, dropped)
