"""``inferspan run``: the program cannot tell, and its models are recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.zero_code.programs import GENERATE, PATH, run, spans

TELL = """\
import json, os, sys
print(json.dumps({"argv": sys.argv, "path": sys.path, "name": __name__, "file": globals().get("__file__"),
                  "spec": getattr(__spec__, "name", None), "package": __package__, "flags": list(sys.flags),
                  "torch": "torch" in sys.modules, "main": sys.modules["__main__"].__dict__ is globals()}))
"""
OWN_FILE = """\
import torch
import inferspan
model = torch.nn.Linear(2, 2)
with inferspan.instrument(model, session_file="{file}"), torch.no_grad():
    model(torch.ones(1, 2))
"""
RUN = ("-m", "inferspan", "run")


def _same(tmp_path: Path, *program: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """What a program does, which must be the same with and without ``inferspan run``."""
    without, with_ = run(*options, *program, cwd=tmp_path), run(*options, *RUN, *program, cwd=tmp_path)
    assert with_.stdout == without.stdout
    assert with_.stderr == without.stderr
    assert with_.returncode == without.returncode
    return with_.returncode, with_.stdout, with_.stderr


def test_script(tmp_path: Path) -> None:
    """Arguments, path, main module and flags of a script are those of a plain start; torch is not imported."""
    (tmp_path / "app.py").write_text(TELL)
    code, out, _ = _same(tmp_path, "app.py", "--config", "x", "-m", "--", "--help", options=("-X", "dev"))
    assert code == 0
    told = json.loads(out)
    assert told["argv"] == ["app.py", "--config", "x", "-m", "--", "--help"]
    assert told["name"] == "__main__"
    assert told["torch"] is False


def test_module(tmp_path: Path) -> None:
    """So are those of a package that is run with ``-m``."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "__main__.py").write_text(TELL)
    _, out, _ = _same(tmp_path, "-m", "pack", "--trace-output", "y")
    assert json.loads(out)["argv"][1:] == ["--trace-output", "y"]
    assert json.loads(out)["spec"] == "pack.__main__"


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import sys\nsys.exit(7)", 7),
        ("raise ValueError('no')", 1),
        ("import nothing_of_this_name", 1),
        ("import sys\nsys.exit('words')", 1),
        ("def f(:", 1),
        ("import os\nos.kill(os.getpid(), 15)", -15),
    ],
    ids=["exit", "exception", "import", "words", "syntax", "signal"],
)
def test_end(tmp_path: Path, program: str, status: int) -> None:
    """Exit status, traceback and the death by a signal are the program's own."""
    (tmp_path / "app.py").write_text(program)
    assert _same(tmp_path, "app.py")[0] == status


def test_missing_program(tmp_path: Path) -> None:
    """A program that is not there fails as it does with Python."""
    assert _same(tmp_path, "app.py")[0] == 2


def test_library_that_cannot_be_imported(tmp_path: Path) -> None:
    """A library that is watched and fails at its import fails with its own traceback."""
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").touch()
    (tmp_path / "transformers" / "modeling_utils.py").write_text("1 / 0\n")
    (tmp_path / "app.py").write_text("import transformers.modeling_utils\n")
    code, _, err = _same(tmp_path, "app.py")
    assert code == 1
    assert "ZeroDivisionError" in err
    assert "inferspan" not in err.replace(str(tmp_path), "")


def test_signal_reaches_the_program(tmp_path: Path) -> None:
    """The process that was started is the program: it gets the signals, and its handlers run."""
    (tmp_path / "app.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(42))\n"
        "open('ready', 'w').write(str(os.getpid()))\n"
        "time.sleep(120)\n"
    )
    environment = {**os.environ, "PYTHONPATH": PATH}
    process = subprocess.Popen([sys.executable, *RUN, "app.py"], cwd=tmp_path, env=environment)
    try:
        ready = tmp_path / "ready"
        while not (ready.is_file() and ready.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        assert int(ready.read_text()) == process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 42
    finally:
        process.kill()
        process.wait()


def test_own_sitecustomize_runs(tmp_path: Path) -> None:
    """The ``sitecustomize`` of the environment runs as well, and is the one that the program sees."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "sitecustomize.py").write_text("there = 1\n")
    (tmp_path / "app.py").write_text("import sitecustomize, sys\nprint(sitecustomize.there, sys.path)\n")
    path = os.pathsep.join((str(tmp_path / "more"), PATH))
    without, with_ = (run(*more, "app.py", cwd=tmp_path, PYTHONPATH=path) for more in ((), RUN))
    assert with_.stdout == without.stdout
    assert with_.stdout.startswith("1 ")


def test_wrong_options(tmp_path: Path) -> None:
    """What the command line names and cannot be used is one line and exit status 2, and the program is not started."""
    (tmp_path / "app.py").write_text("open('ran', 'w')\n")
    (tmp_path / "wrong.yaml").write_text("modles: all\n")
    for options, words in (
        (("--config", "nowhere.yaml"), "cannot read its settings file"),
        (("--config", "wrong.yaml"), "did you mean 'modules'?"),
        (("--trace-output", "no/such/folder/s.jsonl"), "s.jsonl"),
    ):
        result = run(*RUN, *options, "app.py", cwd=tmp_path)
        assert result.returncode == 2
        assert len(result.stderr.splitlines()) == 1
        assert words in result.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("arguments", [(), ("-m",)])
def test_no_program(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Without a program the command names what is missing."""
    result = run(*RUN, *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("inferspan: run ")


def test_isolated_interpreter(tmp_path: Path) -> None:
    """An interpreter that ignores the environment cannot do it, and the command says so."""
    code = "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); from inferspan.cli import main; sys.exit(main(sys.argv[1:]))"
    result = run("-I", "-c", code, PATH, "run", "app.py", cwd=tmp_path)
    assert result.returncode == 2
    assert "-I, -E and -S" in result.stderr


def test_models_are_recorded(tmp_path: Path) -> None:
    """A program's models end up in the file, the settings file counts, and the output is the same."""
    (tmp_path / "app.py").write_text(GENERATE + "print(answer())\n")
    (tmp_path / "inferspan.yaml").write_text("model_name: from the file\n")
    without = run("app.py", cwd=tmp_path)
    with_ = run(*RUN, "--trace-output", "s.jsonl", "--config", "inferspan.yaml", "app.py", cwd=tmp_path)
    assert with_.stdout == without.stdout
    assert with_.returncode == 0
    assert [span["name"] for span in spans(tmp_path / "s.jsonl") if not span.get("parentSpanId")] == ["text_completion from the file"]


def test_a_program_with_a_session_file_of_its_own(tmp_path: Path) -> None:
    """Both files have its requests; that of --trace-output would be empty otherwise."""
    program = OWN_FILE.format(file="own.jsonl")
    (tmp_path / "app.py").write_text(program)
    done = run(*RUN, "--trace-output", "asked.jsonl", "app.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = [[span["name"] for span in spans(tmp_path / name)] for name in ("asked.jsonl", "own.jsonl")]
    assert names[0].count("forward Linear") == 1
    assert names[0] == names[1]


def test_exception_of_a_model(tmp_path: Path) -> None:
    """A model's exception ends the program as without, and its request is in the file."""
    (tmp_path / "app.py").write_text(GENERATE + "LlamaForCausalLM.forward = lambda *_, **__: 1 / 0\nanswer()\n")
    result = run(*RUN, "--trace-output", "s.jsonl", "app.py", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    assert [span["status"]["code"] for span in spans(tmp_path / "s.jsonl") if not span.get("parentSpanId")] == [2]


def test_spawned_processes(tmp_path: Path) -> None:
    """Processes that ``multiprocessing`` spawns are observed too, and find the program's main module."""
    (tmp_path / "app.py").write_text(
        GENERATE + "if __name__ == '__main__':\n"
        "    import multiprocessing\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(answer, (3,)) == answer(3))\n"
        "        pool.close()\n"
        "        pool.join()\n"
    )
    result = run(*RUN, "--trace-output", "s.jsonl", "app.py", cwd=tmp_path)
    assert result.stdout == "True\n"
    assert result.returncode == 0
    assert len([span for span in spans(tmp_path / "s.jsonl") if not span.get("parentSpanId")]) == 2


@pytest.mark.integration
def test_ranks_of_torchrun(tmp_path: Path) -> None:
    """Ranks that torchrun starts are observed with the settings file of the command line."""
    (tmp_path / "app.py").write_text(GENERATE + "print(answer())\n")
    (tmp_path / "inferspan.yaml").write_text("model_name: of the ranks\n")
    result = run(
        *RUN, "--trace-output", "s.jsonl", "--config", "inferspan.yaml", "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--master-port", "0", "app.py", cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    names = [span["name"] for span in spans(tmp_path / "s.jsonl") if not span.get("parentSpanId")]
    assert names == ["text_completion of the ranks"] * 2
