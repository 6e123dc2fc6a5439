"""Stages where nothing is recorded, and the arguments that raise."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import inferspan
from inferspan.program.recorders import OFF


def test_off_is_one_object() -> None:
    """Where no model is instrumented and no session is open, all blocks get one object that does nothing."""
    stage = inferspan.stage("one", count=1)
    assert stage.start() is OFF
    assert inferspan.stage("two").start() is OFF
    with stage as entered:
        assert entered is OFF
    stage.end(count=2)
    assert stage.duration is None
    assert stage.self_time is None


def test_an_exception_passes_through_a_stage_that_is_off() -> None:
    """The object that does nothing keeps no exception back."""
    with pytest.raises(LookupError), inferspan.stage("one"):
        raise LookupError


def test_off_loads_nothing() -> None:
    """A stage that is off loads neither torch nor OpenTelemetry."""
    code = "import sys, inferspan\nwith inferspan.stage('x'): pass\nprint([name for name in ('torch', 'opentelemetry') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("call", [inferspan.stage, inferspan.session], ids=["stage", "session"])
@pytest.mark.parametrize(("name", "error"), [(3, TypeError), (None, TypeError), ("", ValueError), ("  ", ValueError)])
def test_a_wrong_name_raises(call: Any, name: Any, error: type[Exception]) -> None:
    """A name is a text that is not empty."""
    with pytest.raises(error, match="takes a name"):
        call(name)


@pytest.mark.parametrize("tags", [["mode"], {"mode": object()}, {1: "t2v"}], ids=["list", "object", "number as key"])
def test_wrong_tags_raise(tags: Any) -> None:
    """Tags are texts and numbers by key."""
    with pytest.raises(TypeError, match="tags"):
        inferspan.session("s", tags)
