"""``inferspan doctor -- command``: the launcher, the Python and the variables of the command, without running its program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferspan.cli import main
from tests.doctor.conftest import Doctor, clean
from tests.support.otlp_receivers import grpc_receiver

BIN = Path(sys.executable).parent
PROGRAM = """\
import inferspan
raise SystemExit("the program was run")
inferspan.instrument(object(), modules="all", top_k=3, session_file="here.jsonl")
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A program that must not run."""
    path = tmp_path / "app.py"
    path.write_text(PROGRAM)
    return path


def test_arguments_of_a_program_are_read(doctor: Doctor, app: Path) -> None:
    """Where it instruments, and with which settings; a destination that it names is one."""
    told = doctor("--", sys.executable, "-X", "dev", app, "--port", "8000")
    assert told.topic("program")["inferspan.instrument()"]["value"] == f"{app}:3"
    found = told.topic("settings")
    assert {name: (found[name]["value"], found[name]["source"]) for name in ("modules", "top_k")} == {
        "modules": ("all", f"argument of {app}:3"),
        "top_k": ("3", f"argument of {app}:3"),
    }
    assert told.topic("emitted")["service"]["value"] == "app"
    assert told.topic("emitted")["modules"]["value"] == "all, on sampled steps"
    assert told.topic("session file")["session file"]["source"] == f"argument of {app}:3"
    assert (told.whole["problems"], told.code) == ([], 0)


def test_arguments_that_instrument_refuses(doctor: Doctor, tmp_path: Path) -> None:
    """They are found without running the program."""
    (tmp_path / "wrong.py").write_text("import inferspan as spans\nspans.instrument(model, modules='everything', session_file='s.jsonl')\n")
    told = doctor("--", sys.executable, "wrong.py", INFERSPAN_SESSION_FILE="s.jsonl")
    value, fix = told.problems["modules"]
    assert value == "instrument() refuses 'everything'"
    assert fix.startswith('use "layers", "all", "none"')


def test_a_session_file_of_the_program_that_cannot_be_written(doctor: Doctor, tmp_path: Path) -> None:
    """The place in the program is named."""
    (tmp_path / "app.py").write_text("from inferspan import instrument\ninstrument(model, session_file='/nowhere/s.jsonl')\n")
    told = doctor("--", sys.executable, "app.py")
    assert told.problems["session file"][1] == "name a file in a folder that can be written (argument of app.py:2)"


def test_a_program_that_does_not_instrument(doctor: Doctor, tmp_path: Path) -> None:
    """Two ways to change that."""
    (tmp_path / "plain.py").write_text("print('hello')\n")
    told = doctor("--", sys.executable, "plain.py", INFERSPAN_SESSION_FILE="s.jsonl")
    (finding,) = (each for each in told.whole["warnings"] if each["name"] == "models")
    assert finding["fix"] == "add it, or start it with inferspan run plain.py"


def test_providers_of_the_program(doctor: Doctor, tmp_path: Path) -> None:
    """They are named with their place, and no other destination is missed."""
    (tmp_path / "own.py").write_text("import inferspan\nfrom opentelemetry import trace\ntrace.set_tracer_provider(1)\ninferspan.instrument(2)\n")
    told = doctor("--", sys.executable, "own.py")
    assert told.topic("providers")["traces"]["value"] == "the program's own, set at own.py:3"
    assert told.code == 0


def test_inferspan_run(doctor: Doctor, app: Path, tmp_path: Path) -> None:
    """Its options are variables of the program, and all models are observed."""
    told = doctor("--", BIN / "python", "-m", "inferspan", "run", "--trace-output", "out.jsonl", "--include", "my.*", app)
    assert told.topic("program")["models"]["value"] == "every model that the program builds and calls is observed"
    found = told.topic("environment")
    assert found["INFERSPAN_SESSION_FILE"]["source"] == "set by inferspan run"
    assert found["INFERSPAN_INCLUDE"]["value"] == "my.*"
    assert told.topic("session file")["session file"]["state"] == "ok"
    assert told.code == 0


def test_opentelemetry_instrument(doctor: Doctor, app: Path) -> None:
    """Its providers are those that it has set, and its options count."""
    pytest.importorskip("opentelemetry.instrumentation.auto_instrumentation")
    if not (BIN / "opentelemetry-instrument").exists():
        pytest.skip("opentelemetry-instrument is not beside this Python")
    with grpc_receiver() as received:
        told = doctor("--", BIN / "opentelemetry-instrument", "--exporter_otlp_endpoint", received.endpoint, sys.executable, app)
    found = told.topic("providers")
    for signal in ("traces", "metrics"):
        assert "set by opentelemetry-instrument: OTLP" in found[signal]["value"]
    assert told.topic("program")["models"]["source"] == "opentelemetry-instrument"
    assert [span.name for span in received.spans()] == ["inferspan doctor"]
    assert (told.whole["problems"], told.code) == ([], 0)


def test_opentelemetry_instrument_without_us(doctor: Doctor, app: Path) -> None:
    """Where inferspan is disabled, the variable is named."""
    if not (BIN / "opentelemetry-instrument").exists():
        pytest.skip("opentelemetry-instrument is not beside this Python")
    told = doctor(
        "--no-send", "--", BIN / "opentelemetry-instrument", "--traces_exporter", "none", sys.executable, app,
        OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="inferspan", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
    )  # fmt: skip
    assert told.problems["models"][1] == "take inferspan out of OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
    assert told.problems["traces"][1] == "set OTEL_TRACES_EXPORTER=otlp, or give it one"


def test_variables_before_the_command(doctor: Doctor, app: Path) -> None:
    """Those of the shell's form and of ``env``."""
    told = doctor("--", "env", "INFERSPAN_TOP_K=9", "OTEL_SERVICE_NAME=shop", sys.executable, app)
    assert told.topic("environment")["INFERSPAN_TOP_K"]["source"] == "set by the command"
    assert told.topic("emitted")["service"]["value"] == "shop"


def test_a_module_as_program(doctor: Doctor, tmp_path: Path) -> None:
    """``python -m package`` is called like its package."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__main__.py").write_text("raise SystemExit(3)")
    told = doctor("--", sys.executable, "-m", "shop", INFERSPAN_SESSION_FILE="s.jsonl")
    assert told.topic("emitted")["service"]["value"] == "shop"


def test_a_script_with_its_python(doctor: Doctor, tmp_path: Path) -> None:
    """A console script is looked at by its first line."""
    script = tmp_path / "serve"
    script.write_text(f"#!{sys.executable}\nimport inferspan\ninferspan.instrument(1)\n")
    script.chmod(0o755)
    told = doctor("--", script, INFERSPAN_SESSION_FILE="s.jsonl")
    assert told.topic("program")["inferspan.instrument()"]["value"] == f"{script}:3"


@pytest.mark.parametrize(("words", "service"), [(["serve", "--port", "8", "shop.web:app"], "serve"), (["serve", "--nproc", "2", "shop/web.py"], "web")])
def test_a_launcher_with_the_file_that_it_runs(doctor: Doctor, tmp_path: Path, words: list[str], service: str) -> None:
    """Of servers and launchers the program is what they are given."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "web.py").write_text("import inferspan\ninferspan.instrument(1)\n")
    script = tmp_path / "serve"
    script.write_text(f"#!{sys.executable}\nprint('a launcher')\n")
    script.chmod(0o755)
    told = doctor("--", script, *words[1:], INFERSPAN_SESSION_FILE="s.jsonl")
    assert told.topic("program")["inferspan.instrument()"]["value"] == f"{Path('shop') / 'web.py'}:2"
    assert told.topic("emitted")["service"]["value"] == service


def test_a_missing_program(doctor: Doctor) -> None:
    """The path is at fault."""
    told = doctor("--", sys.executable, "nowhere.py", INFERSPAN_SESSION_FILE="s.jsonl")
    assert told.problems["program"][0] == "nowhere.py: No such file or directory"


def test_a_python_without_inferspan(doctor: Doctor, tmp_path: Path) -> None:
    """The Python of the command is another one than that of the doctor: where to install."""
    bare = tmp_path / "bare" / "bin" / "python"
    made = subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("no venv can be made")
    told = doctor("--", "env", "PYTHONPATH=", bare, "app.py")
    assert told.problems == {"inferspan": (f"it is not installed for {bare}", f"{bare} -m pip install inferspan")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bash", "start.sh"], "no Python program: give the command that starts Python"),
        (["no-such-command"], "is not found on PATH"),
        (["env", "A=1"], "no command follows"),
        (["env", "-i", "python"], "write the variables before the command"),
    ],
)
def test_what_cannot_be_looked_into(tmp_path: Path, words: list[str], said: str) -> None:
    """One line, exit code 2."""
    command = [sys.executable, "-m", "inferspan", "doctor", "--", *words]
    done = subprocess.run(command, env=clean({}), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n"), said in done.stderr) == (2, 1, True), done.stderr


def test_a_program_without_its_python(capsys: pytest.CaptureFixture[str]) -> None:
    """The command that was meant is named, ready to be copied."""
    assert main(["doctor", "s1.py", "--port", "a b"]) == 2
    assert capsys.readouterr().err == "inferspan: s1.py is not a command: did you mean inferspan doctor -- python s1.py --port 'a b'\n"


def test_nothing_is_left_behind(doctor: Doctor, app: Path, tmp_path: Path) -> None:
    """No file of the program's, and no byte code."""
    before = sorted(os.listdir(tmp_path))
    doctor("--", sys.executable, app, INFERSPAN_SESSION_FILE="s.jsonl")
    assert sorted(os.listdir(tmp_path)) == before
