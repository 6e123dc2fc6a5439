"""What cannot work: one error that names program, port, variable or file, and what to do; nothing is left running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferspan.cli import main
from tests.stack.conftest import StackCommand
from tests.support.ports import free_ports

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the fake servers are scripts that POSIX systems can run")


def test_every_missing_program_is_named(stack: StackCommand) -> None:
    """All missing programs in one error, each with where to get it and its variable; one that is given wrong as well."""
    (stack.bin / "jaeger").unlink()
    code, out, err = stack.up(INFERSPAN_STACK_OTELCOL="/nowhere/otelcol")
    assert (code, out) == (2, "")
    assert err == (
        "inferspan: 2 programs are missing:\n"
        "  jaeger is not on PATH\n"
        "      Jaeger 2\n"
        "      github.com/jaegertracing/jaeger/releases\n"
        "      INFERSPAN_STACK_JAEGER=FILE names another one\n"
        "  INFERSPAN_STACK_OTELCOL=/nowhere/otelcol is no program that can be run\n"
        "      OpenTelemetry Collector, distribution contrib, 0.157 or later\n"
        "      github.com/open-telemetry/opentelemetry-collector-releases/releases\n"
        "      INFERSPAN_STACK_OTELCOL=FILE names another one\n"
        "Download the release for your system, unpack it, and put the program on PATH or name it by its variable.\n"
    )


def test_program_by_variable(stack: StackCommand) -> None:
    """A variable names a program that is not on PATH, and wins over one that is; the contrib distribution wins over another."""
    elsewhere = stack.bin.parent / "elsewhere"
    elsewhere.mkdir()
    (stack.bin / "jaeger").rename(elsewhere / "jaeger")
    contrib = stack.add_program("otelcol-contrib")
    contrib.write_text(f"#!{sys.executable}\nprint('Error: I am contrib')\n")
    code, out, err = stack.up(INFERSPAN_STACK_JAEGER=str(elsewhere / "jaeger"))
    assert code == 2 and "Error: I am contrib" in err, out
    assert stack.left() == []


def test_taken_ports_are_named_before_anything_starts(stack: StackCommand) -> None:
    """Each taken port with who has it and the variable for another one; two uses of one port; nothing is started."""
    listener = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", listener], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            taken = other.stdout.readline().strip()
            name = Path(f"/proc/{other.pid}/comm").read_text().strip() if Path("/proc").is_dir() else "python"
            code, out, err = stack.up(OTELCOL_HTTP_PORT=taken, JAEGER_QUERY_PORT="4711", JAEGER_HTTP_PORT="4711")
        finally:
            other.kill()
    assert (code, out, stack.processes()) == (2, "", [])
    assert err == (
        f"inferspan: port {taken} (OTLP over HTTP) is taken by {name} (pid {other.pid}): another one with OTELCOL_HTTP_PORT\n"
        "port 4711 is wanted twice: JAEGER_HTTP_PORT and JAEGER_QUERY_PORT\n"
        "Nothing was started. `--free-ports` takes free ones for all that no variable names.\n"
    )
    assert not (stack.folder / "logs").exists()


def test_port_taken_in_the_meantime(stack: StackCommand) -> None:
    """A program that finds its port taken after the check: its words, who has the port, and the variable."""
    code, _, err = stack.up(FAKE_PROMETHEUS="port")
    assert code == 2
    words = err.splitlines()
    assert words[0].startswith("inferspan: prometheus ended while starting, with exit code 1.")
    assert words[1].endswith("bind: address already in use")
    assert words[2].startswith("Port ") and words[2].endswith("another one with INFERSPAN_STACK_PROMETHEUS_PORT, or `--free-ports`.")
    assert stack.left() == []


def test_answer_of_another_program_is_not_taken_for_health(stack: StackCommand) -> None:
    """A program whose health port is answered by somebody else is not ready."""
    # The fake listens where the collector's own health is looked for, as a child of nobody in this stack.
    port = free_ports(1)[0]
    script = (
        "import http.server, subprocess, sys\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "    def log_message(self, *a): pass\n"
        f"http.server.HTTPServer(('127.0.0.1', {port}), H).serve_forever()\n"
    )
    launcher = stack.bin / "otelcol"
    launcher.write_text(
        f"#!{sys.executable}\nimport subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {script!r}], start_new_session=True)\ntime.sleep(60)\n"
    )
    code, _, err = stack.up("--timeout", "2", OTELCOL_HEALTH_PORT=str(port))
    assert code == 2 and "otelcol was not ready after 2 s" in err


def test_never_healthy(stack: StackCommand) -> None:
    """A program that does not become healthy in time is named with its address; all are stopped."""
    code, _, err = stack.up("--timeout", "1.5", FAKE_JAEGER="sick")
    assert code == 2 and "jaeger was not ready after 1.5 s: http://127.0.0.1:" in err and "  jaeger starts" in err
    assert stack.left() == []


def test_slow_program_is_waited_for(stack: StackCommand) -> None:
    """A program that needs a while is waited for."""
    code, out, _ = stack.up(FAKE_JAEGER="slow=1.2")
    assert code == 0
    assert float(next(line for line in out.splitlines() if "jaeger" in line and "ready" in line).split()[-2]) >= 1.2


def test_program_that_goes_to_the_background(stack: StackCommand) -> None:
    """A program that leaves its work to a child has ended, and the child is ended too."""
    code, _, err = stack.up("--stop-timeout", "0.3", FAKE_JAEGER="daemon")
    assert code == 2 and "jaeger ended while starting, with exit code 0." in err
    assert stack.left() == []


def test_wrong_value_in_a_configuration(stack: StackCommand) -> None:
    """The program's own message, and the variable with file, line and what is expected."""
    code, _, err = stack.up(OTELCOL_HEALTH_PORT="abc", OTELCOL_RED_INTERVAL="1s")
    assert code == 2
    assert err.splitlines()[1:] == [
        "  Error: listen tcp: lookup tcp/abc: unknown port",
        "OTELCOL_HEALTH_PORT=abc (default 13133) is read by dev.yaml, line 6 (`endpoint`): a port is a number from 1 to 65535.",
    ]
    assert stack.left() == []


def test_variables_of_a_program_that_died_are_listed(stack: StackCommand) -> None:
    """Where the words of the program point to no variable, all that the user has set for its file are listed."""
    code, _, err = stack.up(FAKE_OTELCOL="die=0", OTELCOL_RED_INTERVAL="1s")
    assert code == 2
    place = "OTELCOL_RED_INTERVAL=1s (default 15s) is read by dev.yaml, line "
    assert err.splitlines()[2] == "Of your environment it reads:" and err.splitlines()[3].startswith(f"  {place}")


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("PROMETHEUS_OTLP", "nonsense", "PROMETHEUS_OTLP=nonsense is no URL. dev.yaml reads it in line "),
        ("PROMETHEUS_URL", "localhost:9090", "PROMETHEUS_URL=localhost:9090 is no URL. jaeger.yaml reads it in line "),
        ("INFERSPAN_STACK_PROMETHEUS_PORT", "0", "INFERSPAN_STACK_PROMETHEUS_PORT=0: a port is a number from 1 to 65535"),
        (
            "GRAFANA_PORT",
            "3001",
            "GRAFANA_PORT is read by docker-compose.yaml only: set INFERSPAN_STACK_GRAFANA_PORT for this stack, or unset it",
        ),
        ("INFERSPAN_STACK_JEAGER", "x", "INFERSPAN_STACK_JEAGER is no variable of the stack: did you mean INFERSPAN_STACK_JAEGER?"),
        ("INFERSPAN_STACK_GRAFANA", "/nowhere", "INFERSPAN_STACK_GRAFANA=/nowhere is no program that can be run"),
    ],
)
def test_values_that_no_program_would_refuse(stack: StackCommand, variable: str, value: str, expected: str) -> None:
    """Refused before anything is started, with the variable."""
    code, out, err = stack.up(**{variable: value})
    assert (code, out, stack.processes()) == (2, "", [])
    assert err.startswith(f"inferspan: {expected}")


def test_bundle_without_the_files(stack: StackCommand) -> None:
    """A folder that is no bundle is said to lack the files, with the command that writes them."""
    code, _, err = stack.up("--bundle", str(stack.bin))
    assert (code, err) == (
        2,
        f"inferspan: {stack.bin}/collector-config has no dev.yaml, jaeger.yaml, prometheus.yml:"
        f" write the folder with `inferspan bundle {stack.bin}`\n",
    )


def test_folder_that_cannot_be_used(stack: StackCommand) -> None:
    """A state folder that cannot be made is named with the option for another one."""
    stack.folder = stack.bin / "jaeger" / "state"
    code, _, err = stack.up()
    assert (code, err) == (2, f"inferspan: the folder {stack.folder} cannot be used: Not a directory; choose another one with --dir\n")


@pytest.mark.parametrize(
    "arguments", [["stack"], ["stack", "up", "--mode", "x"], ["stack", "up", "--timeout", "0"], ["stack", "logs", "-n", "-1"], ["bundle"]]
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments end as argparse ends."""
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 2


def test_help_names_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of up names all programs' variables and every port with its default, and fits 80 columns."""
    from inferspan.stack.ports import PORTS
    from inferspan.stack.programs import GRAFANA_HOME, PROGRAMS

    with pytest.raises(SystemExit):
        main(["stack", "up", "--help"])
    text = capsys.readouterr().out
    names = [program.variable for program in PROGRAMS] + [GRAFANA_HOME]
    names += [f"{port.variable} {port.default}" for port in PORTS]
    flat = " ".join(text.split())
    assert [name for name in names if name not in flat] == []
    assert max(map(len, text.splitlines())) <= 80


def test_folder_of_somebody_else(stack: StackCommand) -> None:
    """A folder with files that are not of a stack is refused, also by --fresh, and nothing in it is touched."""
    for name in ("data", "grafana"):
        (stack.folder / name).mkdir(parents=True)
        (stack.folder / name / "mine.txt").write_text("mine")
    code, out, err = stack.up("--fresh")
    assert (code, out) == (2, "")
    assert err == f"inferspan: {stack.folder} holds files that are not of a stack: choose an empty or a new folder with --dir\n"
    assert sorted(path.name for path in stack.folder.rglob("*")) == ["data", "grafana", "mine.txt", "mine.txt"]


def test_bundle_is_the_folder_of_the_stack(stack: StackCommand) -> None:
    """The stack does not write over the configurations that it is to use."""
    stack.up()
    stack("down")
    code, _, err = stack.up("--bundle", str(stack.folder))
    assert (code, err.splitlines()[0].startswith(f"inferspan: --bundle and --dir are both {stack.folder}")) == (2, True), err


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("jaeger-ui.json", b"{oops", "is no JSON: "),
        ("jaeger-ui.json", b"[]", "is no JSON object"),
        ("dev.yaml", b"\xff", "is no text in UTF-8: "),
    ],
)
def test_edited_file_that_cannot_be_read(stack: StackCommand, tmp_path: Path, file: str, content: bytes, message: str) -> None:
    """A file of the user's own that is broken is named, with what is wrong."""
    assert main(["bundle", str(tmp_path / "mine")]) == 0
    path = tmp_path / "mine" / "collector-config" / file
    path.write_bytes(content)
    code, out, err = stack.up("--bundle", str(tmp_path / "mine"))
    assert (code, out, err.startswith(f"inferspan: {path} {message}")) == (2, "", True), err


@pytest.mark.parametrize("value", ["0", "http"])
def test_port_that_a_server_would_take(stack: StackCommand, value: str) -> None:
    """0 is any port to a server, and a name a port of the system's: neither can be printed as an address."""
    code, _, err = stack.up(OTELCOL_HTTP_PORT=value)
    assert (code, err) == (2, f"inferspan: OTELCOL_HTTP_PORT={value}: a port is a number from 1 to 65535\n")


def test_folder_that_cannot_be_written(stack: StackCommand) -> None:
    """What is in the way inside the folder is named in one line."""
    stack.folder.mkdir()
    (stack.folder / "stack.lock").touch()
    (stack.folder / "logs").touch()
    code, _, err = stack.up()
    assert (code, err) == (2, f"inferspan: {stack.folder}/logs cannot be used: File exists; choose another folder with --dir\n")


@pytest.mark.parametrize(
    ("option", "message"),
    [("--timeout", "'soon' is not a number of seconds, more than 0 and less than a day"), ("--lines", "'soon' is not a number, 0 or more")],
)
def test_number_that_is_none(capsys: pytest.CaptureFixture[str], option: str, message: str) -> None:
    """A wrong number is shown with what is wanted."""
    with pytest.raises(SystemExit):
        main(["stack", "up" if option == "--timeout" else "logs", option, "soon"])
    assert capsys.readouterr().err.splitlines()[-1].endswith(message)


def test_user_without_a_home(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A user whom the system does not know, as in a container, is told what to give."""

    def unknown(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    assert main(["stack", "status"]) == 2
    assert capsys.readouterr().err == "inferspan: this user has no home folder: name a folder with --dir, or set HOME\n"
    assert main(["stack", "status", "--dir", "/nowhere/at all"]) == 1
    assert capsys.readouterr().out.endswith("stack up --dir '/nowhere/at all'\n")
