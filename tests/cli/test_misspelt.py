"""Misspelt options and commands get the one that is meant."""

from __future__ import annotations

import pytest

from inferspan.cli import main

CASES = {
    ("run", "--trace-ouput", "f", "app.py"): "inferspan run: error: unrecognized arguments: --trace-ouput; did you mean --trace-output?",
    ("run", "--trace-ouput=f", "app.py"): "inferspan run: error: unrecognized arguments: --trace-ouput=f; did you mean --trace-output?",
    ("run", "--inculde", "x", "-m", "app"): "unrecognized arguments: --inculde; did you mean --include?",
    ("report", "s.jsonl", "--txt"): "inferspan report: error: unrecognized arguments: --txt; did you mean --text?",
    ("doctor", "--jsn"): "inferspan doctor: error: unrecognized arguments: --jsn; did you mean --json?",
    ("stack", "upp"): "; did you mean up?",
    ("reprot", "s.jsonl"): "; did you mean report?",
    ("replay", "--protocol", "grcp", "s.jsonl"): "; did you mean grpc?",
    ("report", "s.jsonl", "--zzz"): "inferspan report: error: unrecognized arguments: --zzz\n",
}


@pytest.mark.parametrize("arguments", CASES, ids=" ".join)
def test_what_is_meant_is_named(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """With the usage of the command it is about, and exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert CASES[arguments] in capsys.readouterr().err
