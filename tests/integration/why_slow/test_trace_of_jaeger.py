"""``inferspan explain --trace``: the trace of a running Jaeger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferspan.cli import main
from inferspan.report.session import read_session
from tests.explain.made import Run, make
from tests.integration.servers import Stack, eventually

pytestmark = pytest.mark.integration


def test_a_trace_of_jaeger_is_explained_as_in_its_file(stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same cause, with the same share: Jaeger hands back all spans and attributes."""
    path = tmp_path / "session.jsonl"
    make(path, Run(requests=1, kernel_share=0.33))
    trace = read_session(path).requests[0].span.trace_id
    assert main(["replay", str(path), "--endpoint", stack.http, "--now"]) == 0

    def explained() -> Any:
        capsys.readouterr()
        assert main(["explain", "--trace", trace, "--jaeger", stack.jaeger, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["causes"]
        return found

    found = eventually(explained)
    assert main(["explain", str(path), "--trace", trace, "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert [(cause["rule"], round(cause["share"], 6)) for cause in found["causes"]] == [
        (cause["rule"], round(cause["share"], 6)) for cause in expected["causes"]
    ]
