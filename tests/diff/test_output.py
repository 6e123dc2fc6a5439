"""A comparison as text, Markdown and page."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from inferspan import semconv
from inferspan.cli import main
from tests.diff.recordings import noise, write

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
HOSTILE = "</title><script>alert(1)</script>|*x*\x1b[31m"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """Two recordings; the second one is slower, has another torch and a name that means harm."""
    a = write(tmp_path / "a.jsonl", [0.1 * value for value in noise(60, 1)], model=HOSTILE, resource={semconv.TORCH_VERSION: "2.12"})
    b = write(tmp_path / "b.jsonl", [0.105 * value for value in noise(60, 2)], model=HOSTILE, resource={semconv.TORCH_VERSION: "2.13"}, slow_module=1.2)
    return str(a), str(b)


def test_text_has_the_verdict_the_sides_and_the_tables(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The whole of it, with the figures that the noise decides on left out."""
    assert main(["diff", *pair, "--gate", "3%"]) == 1
    out = re.sub(r"[+-]?\d+(\.\d+)? (%|ms)", "N", capsys.readouterr().out.replace("</title><script>alert(1)</script>|*x*?[31m", "tiny"))
    assert re.sub(r" +", " ", out) == (
        "REGRESSION (gate N)\n"
        " request of text_completion tiny, batch 1, 24 input tokens: N (N to N)\n"
        " prefill of text_completion tiny, batch 1, 24 input tokens: N (N to N)\n"
        " decode of text_completion tiny, batch 1, 24 input tokens: N (N to N)\n"
        "\nA a.jsonl: 60 requests of tiny\nB b.jsonl: 60 requests of tiny\n"
        "\nEnvironment: what differs\n A B\n torch 2.12 2.13\n"
        "\ntext_completion tiny, batch 1, 24 input tokens: 60 pairs\n"
        " A B change interval (N)\n"
        " request N N N N to N REGRESSION\n"
        " time to first token N N N N to N slower\n"
        " prefill N N N N to N REGRESSION\n"
        " decode N N N N to N REGRESSION\n"
        " time per token N N N N to N slower\n"
        " output tokens, median: 10 in A, 10 in B; the number differs in 0 of 60 pairs\n"
        " logits of the first step: equal in 60 pairs\n"
        "\nModules of text_completion tiny, batch 1, 24 input tokens, time of a call\n"
        " A B change interval (N)\n"
        " layers.1 (decode) N N N N to N slower\n"
        " layers.0 (decode) N N N N to N slower\n"
        "\nnote: recorded in one run of the program each: what differs between runs by chance is in the intervals only from 5 runs a side on\n"
    )


def test_no_character_steers_the_terminal(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Names come from files."""
    main(["diff", *pair])
    assert "\x1b" not in capsys.readouterr().out


def test_markdown_is_alone_on_standard_output(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """For the summary of a job; marks in names are escaped."""
    assert main(["diff", *pair, "--gate", "3%", "--markdown"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("### REGRESSION (gate 3 %)\n\n- request of text\\_completion &lt;/title>&lt;script>alert(1)&lt;/script>\\|\\*x\\*")
    rows = [line for line in out.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4, 7}


def test_markdown_notifies_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of accounts and numbers of issues in the name of a model are divided by a space that has no width."""
    name = "@octocat/net-7b~2 #1 org/net#23 GH-4 !5 a@b C# 6"
    files = [str(write(tmp_path / f"{side}.jsonl", [0.1 * value for value in noise(60, seed)], model=name)) for seed, side in enumerate("ab")]
    main(["diff", *files, "--markdown"])
    out = html.unescape(capsys.readouterr().out)
    assert re.findall(r"@\w|[#!]\d|GH-\d", out) == []
    assert name in out.replace("\u200b", "")


def test_json_is_alone_on_standard_output(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The text goes to standard error."""
    main(["diff", *pair, "--json"])
    captured = capsys.readouterr()
    assert json.loads(captured.out)["schema"] == 1
    assert captured.err.startswith("5 figures grew and 0 shrank beyond the noise\n")


def test_two_outputs_cannot_share_standard_output(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """One of them needs a file."""
    assert main(["diff", *pair, "--json", "--markdown"]) == 2
    assert "cannot both go to standard output" in capsys.readouterr().err


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_the_page_shows_its_tables_and_runs_nothing(pair: tuple[str, str], tmp_path: Path) -> None:
    """Names of a session are text on it."""
    page = tmp_path / "diff.html"
    main(["diff", *pair, "--gate", "3%", "-o", str(page)])
    command = [str(BROWSER), *FLAGS, "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    assert "<script" not in done.stdout
    assert done.stdout.count("<svg") == 7
    assert done.stdout.count("REGRESSION") == 4


def test_a_page_that_cannot_be_written_names_the_option(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the reason."""
    assert main(["diff", *pair, "-o", str(tmp_path / "missing" / "diff.html")]) == 2
    assert "give another path with -o" in capsys.readouterr().err
