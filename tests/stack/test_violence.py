"""What happens to a stack from outside: readers that go, processes that are suspended, commands that cross, programs that run away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stack.conftest import StackCommand, eventually

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the fake servers are scripts that POSIX systems can run")


def _phase(stack: StackCommand) -> str:
    file = stack.folder / "state.json"
    return str(json.loads(file.read_text())["phase"]) if file.exists() else ""


def _supervisor(stack: StackCommand) -> int:
    return int(json.loads((stack.folder / "state.json").read_text())["supervisor"]["pid"])


def test_reader_of_the_output_goes_away(stack: StackCommand) -> None:
    """`up --foreground | head -1`, or a closed terminal: the programs go on, and are stopped one after the other when it is asked for."""
    with stack.start("up", "--free-ports", "--foreground") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        eventually(lambda: _phase(stack) == "ready")
        process.send_signal(signal.SIGHUP)
        err = process.stderr.read()
    assert (_phase(stack), err, stack.left()) == ("stopped", "", [])


def test_suspended_supervisor(stack: StackCommand) -> None:
    """A supervisor that was suspended is woken to stop its programs, and not waited for in vain."""
    stack.up()
    os.kill(_supervisor(stack), signal.SIGSTOP)
    begin = time.monotonic()
    code, out, _ = stack("down")
    assert (code, "is killed" in out, time.monotonic() - begin < 120) == (0, False, True), out
    assert stack.left() == []


def test_suspended_program(stack: StackCommand) -> None:
    """A program that was suspended is unhealthy in the table, and woken to stop by itself."""
    stack.up()
    programs = json.loads(stack("status", "--json")[1])["programs"]
    os.kill(programs[1]["pid"], signal.SIGSTOP)
    seen = json.loads(stack("status", "--json")[1])
    assert [each["health"] for each in seen["programs"]] == ["healthy", "unhealthy", "healthy"]
    code, out, _ = stack("down")
    assert (code, [line.split()[-1] for line in out.splitlines()[:3]], stack.left()) == (0, ["stopped"] * 3, [])


def test_suspended_keeper(stack: StackCommand) -> None:
    """A keeper that was suspended is not left behind."""
    stack.up()
    (keeper,) = [each for each in stack.processes() if each.cmdline()[-1:] == ["keep"]]
    keeper.suspend()
    assert stack("down")[0] == 0
    assert stack.left() == []


def test_down_while_up_has_just_begun(stack: StackCommand) -> None:
    """A `down` that comes before the state is written stops the stack that is about to start, and `up` says that."""
    with stack.start("up", "--free-ports", FAKE_JAEGER="slow=20") as process:
        eventually(lambda: (stack.folder / "stack.lock").exists())
        code, out, _ = stack("down")
        _, err = process.communicate(timeout=30)
    assert (code, "Stopped: no process is left" in out) == (0, True), out
    assert (process.returncode, err) == (2, "inferspan: the stack was stopped while it was starting\n")
    assert stack.left() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands over the children of others")
def test_program_that_goes_into_the_background(stack: StackCommand) -> None:
    """A program that leaves its work to a child in a session of its own is ended as well."""
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)"
    (stack.bin / "jaeger").write_text(f"#!{sys.executable}\n{child}\n")
    code, _, err = stack.up()
    assert code == 2 and err.startswith("inferspan: jaeger ended while starting, with exit code 0."), err
    assert stack.left() == []


def test_folder_in_a_relative_path_of_python(stack: StackCommand, tmp_path: Path) -> None:
    """The background processes find the package where this one has it from, and no file of the folder that a user is in."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise SystemExit('the wrong json')")
    package = Path(__file__).parents[2] / "src"
    (tmp_path / "here" / "packages").symlink_to(package)
    code = "import sys; sys.path[0] = 'packages'; from inferspan.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "stack", "up", "--free-ports", "--dir", str(stack.folder)]
    done = subprocess.run(command, cwd=tmp_path / "here", env=stack.environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len([each for each in stack.processes() if each.cmdline()[-1:] == ["keep"]]) == 1


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"http_proxy": "http://proxy:3128"}, ["export no_proxy=127.0.0.1  # else it goes to your proxy"]),
        ({"HTTP_PROXY": "http://proxy:3128", "no_proxy": "a.b"}, ["export no_proxy=a.b,127.0.0.1  # else it goes to your proxy"]),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "127.0.0.1"}, []),
    ],
)
def test_proxy(stack: StackCommand, environment: dict[str, str], line: list[str]) -> None:
    """A third line to copy, only where exporters would send to a proxy what is for this machine; our own checks never do."""
    stack.environment = {name: value for name, value in stack.environment.items() if not name.lower().endswith("_proxy")}
    code, out, _ = stack.up(**environment)
    assert (code, [each for each in out.splitlines() if each.startswith("export no_proxy")]) == (0, line)


def test_state_that_cannot_be_written(stack: StackCommand) -> None:
    """A disk that fills up while the programs start ends them with a message; `up` does not wait for ever."""
    with stack.start("up", "--free-ports", FAKE_JAEGER="slow=3") as process:
        eventually(lambda: _phase(stack) == "starting" and len(json.loads((stack.folder / "state.json").read_text())["programs"]) == 3)
        (stack.folder / "state.new").mkdir()
        _, err = process.communicate(timeout=30)
    assert (process.returncode, "the state cannot be written" in err) == (2, True), err
    assert stack.left() == []
