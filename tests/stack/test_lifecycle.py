"""Up, status, logs and down with fake servers: what is printed, what runs, and that nothing is left, also after violence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.stack.conftest import StackCommand, eventually

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the fake servers are scripts that POSIX systems can run")

NAMES = ["prometheus", "jaeger", "otelcol"]


def _state(stack: StackCommand) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((stack.folder / "state.json").read_text())
    return loaded


def _programs(stack: StackCommand) -> list[object]:
    programs = _state(stack)["programs"] if (stack.folder / "state.json").exists() else []
    assert isinstance(programs, list)
    return programs


def _status(stack: StackCommand) -> tuple[int, dict[str, object]]:
    code, out, _ = stack("status", "--json")
    return code, json.loads(out)


def test_up_prints_where_everything_is(stack: StackCommand) -> None:
    """All programs become ready; addresses, exactly three lines to copy, and how to stop; then the command returns."""
    code, out, err = stack.up()
    assert (code, err) == (0, "")
    _, seen = _status(stack)
    addresses = seen["addresses"]
    assert isinstance(addresses, dict)
    assert all(url in out for url in addresses.values())
    assert [line for line in out.splitlines() if line.startswith("export ")] == [
        f"export OTEL_EXPORTER_OTLP_ENDPOINT={addresses['OTLP over HTTP']}",
        "export OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
        "export OTEL_SERVICE_NAME=my-service",
    ]
    assert sorted(line.split()[0] for line in out.splitlines() if " ready in " in line) == sorted(NAMES)
    assert "grafana     not found, so no dashboards: github.com/grafana/grafana/releases" in out
    assert out.splitlines()[-1] == f"Stop it: inferspan stack down --dir {stack.folder}"


def test_status_and_down(stack: StackCommand) -> None:
    """Status is 0 while all are healthy and 1 before and after; down ends everything, and can be repeated."""
    assert _status(stack)[0] == 1
    assert stack.up()[0] == 0
    code, seen = _status(stack)
    programs = seen["programs"]
    assert isinstance(programs, list)
    assert (code, seen["running"], seen["healthy"], seen["mode"]) == (0, True, True, "dev")
    assert [(each["name"], each["health"]) for each in programs] == [(name, "healthy") for name in NAMES]
    assert all(each["memory_bytes"] > 0 and each["uptime_s"] >= 0 and Path(each["log"]).is_file() for each in programs)
    code, table, _ = stack("status")
    assert (code, table.splitlines()[0].split()) == (0, ["PROGRAM", "PID", "HEALTH", "UPTIME", "MEMORY", "ADDRESS"])

    code, out, err = stack("down")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()[:3]] == [[name, "stopped"] for name in reversed(NAMES)]
    assert out.splitlines()[3] == "Stopped: no process is left and all ports are free."
    assert stack.left() == []
    assert _status(stack)[0] == 1
    assert stack("down") == (0, f"No stack runs in {stack.folder}.\n", "")


def test_up_twice_says_so(stack: StackCommand) -> None:
    """A second up starts nothing, prints the same addresses and is no error; another mode is one."""
    _, first, _ = stack.up()
    before = sorted(process.pid for process in stack.processes())
    code, second, _ = stack.up()
    assert (code, second.splitlines()[0]) == (0, "The stack runs already, in mode dev, all healthy.")
    assert second.splitlines()[1:] == first.splitlines()[first.splitlines().index("") :]
    code, _, err = stack.up("--mode", "scrape")
    assert code == 2 and err.startswith("inferspan: a stack runs already, in mode dev: stop it first")
    assert sorted(process.pid for process in stack.processes()) == before


def test_two_ups_at_once_start_one_stack(stack: StackCommand) -> None:
    """Of two commands in one folder one starts the stack and the other waits for it."""
    both = [stack.start("up", "--free-ports", FAKE_JAEGER="slow=1") for _ in range(2)]
    ended = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    assert sorted("The stack runs already" in out for out, _ in ended) == [False, True]
    assert sorted(process.name() for process in stack.processes()).count("jaeger") == 1


def test_two_stacks(tmp_path: Path, stack: StackCommand) -> None:
    """Two folders on other ports know nothing of each other."""
    other = StackCommand(tmp_path / "other")
    assert (stack.up()[0], other.up()[0]) == (0, 0)
    assert stack("down")[0] == 0
    assert stack.left() == []
    assert (_status(other)[0], other("down")[0], other.left()) == (0, 0, [])


def test_foreground_ends_with_ctrl_c(stack: StackCommand) -> None:
    """In the foreground it stays until SIGINT and then stops all, in reverse."""
    process = stack.start("up", "--free-ports", "--foreground")
    assert process.stdout is not None
    assert "Stop it: Ctrl-C\n" in iter(process.stdout.readline, "")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        *([name, "stopped"] for name in reversed(NAMES)),
        ["All", "programs", "have", "stopped."],
    ]
    assert stack.left() == []


def test_interrupted_up_leaves_nothing(stack: StackCommand) -> None:
    """Ctrl-C while up waits stops what was started."""
    process = stack.start("up", "--free-ports", FAKE_JAEGER="slow=600")
    eventually(lambda: (stack.folder / "logs" / "jaeger.log").exists() and len(_programs(stack)) == len(NAMES))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert (process.returncode, err, stack.left()) == (130, "inferspan: interrupted\n", [])


def test_foreground_is_stopped_by_down(stack: StackCommand) -> None:
    """Down from another terminal stops a stack in the foreground as well."""
    process = stack.start("up", "--free-ports", "--foreground")
    eventually(lambda: _status(stack)[0] == 0)
    assert stack("down")[0] == 0
    process.communicate(timeout=240)
    assert (process.returncode, stack.left()) == (0, [])


@pytest.mark.parametrize("behaviour", ["", "fork", "deaf fork"])
def test_supervisor_killed_leaves_no_orphan(stack: StackCommand, behaviour: str) -> None:
    """SIGKILL of the supervisor ends all programs and what they have forked; status says it, down cleans up, up starts anew."""
    stack.up(FAKE_JAEGER=behaviour)
    supervisor = _state(stack)["supervisor"]
    assert isinstance(supervisor, dict)
    assert len(stack.processes()) == 3 + 2 + ("fork" in behaviour)
    os.kill(supervisor["pid"], signal.SIGKILL)
    assert stack.left() == []
    code, out, _ = stack("status")
    way_out = f"`inferspan stack down --dir {stack.folder}` cleans up."
    assert (code, out.splitlines()[0]) == (1, f"The stack is not running: its supervisor was killed. {way_out}")
    assert stack("down")[0] == 0
    assert stack.up()[0] == 0


def test_keeper_and_supervisor_killed(stack: StackCommand) -> None:
    """On Linux the kernel ends the programs even if the keeper is killed first."""
    if not Path("/proc").is_dir():
        pytest.skip("the kernel does this on Linux only")
    stack.up()
    for process in stack.processes():
        if process.cmdline()[-1:] == ["keep"]:
            process.kill()
    supervisor = _state(stack)["supervisor"]
    assert isinstance(supervisor, dict)
    os.kill(supervisor["pid"], signal.SIGKILL)
    assert stack.left() == []


def test_program_that_ignores_sigterm_is_killed(stack: StackCommand) -> None:
    """A deaf program with a deaf child is killed after the grace that up was given, and the others stop cleanly."""
    stack.up("--stop-timeout", "0.3", FAKE_JAEGER="deaf fork")
    code, out, _ = stack("down")
    assert code == 0
    assert [line.split() for line in out.splitlines()[:3]] == [["otelcol", "stopped"], ["jaeger", "killed"], ["prometheus", "stopped"]]
    assert stack.left() == []


def test_second_signal_does_not_wait(stack: StackCommand) -> None:
    """While a deaf program has its grace, a second signal ends the waiting."""
    stack.up("--stop-timeout", "60", FAKE_JAEGER="deaf")
    supervisor = _state(stack)["supervisor"]
    assert isinstance(supervisor, dict)
    down = stack.start("down")
    eventually(lambda: _state(stack)["phase"] == "stopping")
    time.sleep(0.3)
    os.kill(supervisor["pid"], signal.SIGTERM)
    down.communicate(timeout=20)
    assert (down.returncode, stack.left()) == (0, [])


def test_program_that_dies_ends_the_stack(stack: StackCommand) -> None:
    """A program that ends later takes the others with it, and status tells what it said and its exit code."""
    assert stack.up(FAKE_JAEGER="die=2")[0] == 0
    assert stack.left() == []
    code, out, _ = stack("status")
    assert (code, out.splitlines()) == (
        1,
        [
            "The stack is not running. It ended because of this:",
            f"  jaeger ended with exit code 3. The end of its log, {stack.folder}/logs/jaeger.log:",
            "    Error: out of luck",
            f"Start it: inferspan stack up --dir {stack.folder}",
        ],
    )


def test_recycled_process_number_is_not_killed(stack: StackCommand) -> None:
    """A process that has got the number of one of ours is left alone: by status, down and up."""
    stack.up()
    os.kill(_pid(stack), signal.SIGKILL)
    assert stack.left() == []
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        state = _state(stack)
        for each in [state["supervisor"], *(program["process"] for program in state["programs"])]:  # type: ignore[attr-defined]
            each["pid"] = stranger.pid
        (stack.folder / "state.json").write_text(json.dumps(state))
        assert _status(stack)[0] == 1
        assert stack("down")[0] == 0
        (stack.folder / "state.json").write_text(json.dumps(state))
        assert stack.up()[0] == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_state_of_another_machine(stack: StackCommand) -> None:
    """A folder that several machines share is not taken from a stack of another one."""
    stack.up()
    stack("down")
    state = {**_state(stack), "phase": "ready", "host": "elsewhere"}
    (stack.folder / "state.json").write_text(json.dumps(state))
    for command in ("up", "down", "status"):
        code, _, err = stack(command)
        assert code == 2 and err.startswith(f"inferspan: {stack.folder} belongs to a stack on the machine 'elsewhere'"), err


def test_unreadable_state(stack: StackCommand) -> None:
    """A state file that is none of ours is named."""
    stack.folder.mkdir()
    (stack.folder / "state.json").write_text('{"half": ')
    for command in ("up", "down", "status", "logs"):
        code, _, err = stack(command)
        assert code == 2 and err.startswith(f"inferspan: {stack.folder}/state.json cannot be read"), err


def test_data_is_kept_unless_fresh(stack: StackCommand) -> None:
    """What servers keep in the data folder is there at the next up, and gone with --fresh."""
    stack.up()
    kept = stack.folder / "data" / "prometheus" / "block"
    kept.write_text("x")
    stack("down")
    stack.up()
    assert kept.exists()
    stack("down")
    stack.up("--fresh")
    assert not kept.exists()


def test_logs(stack: StackCommand) -> None:
    """Logs of all programs or of one, a number of lines, and an error that lists the programs."""
    assert stack("logs")[0] == 2
    stack.up()
    _, out, _ = stack("logs")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("==>")] == [*NAMES, "supervisor"]
    assert stack("logs", "jaeger") == (0, "jaeger starts\n", "")
    assert stack("logs", "jaeger", "-n", "0") == (0, "(empty)\n", "")
    code, _, err = stack("logs", "nonsense")
    assert (code, err) == (
        2,
        "inferspan: there is no program 'nonsense' in this stack; it has prometheus, jaeger, otelcol, supervisor\n",
    )


def test_logs_are_followed_until_the_stack_ends(stack: StackCommand) -> None:
    """With -f what is added comes as whole lines with the program's name; the end of the stack ends it."""
    stack.up()
    log = stack.folder / "logs" / "jaeger.log"
    follower = stack.start("logs", "-f", "-n", "1")
    assert follower.stdout is not None
    assert "jaeger     | jaeger starts\n" in [follower.stdout.readline() for _ in NAMES]
    with log.open("a") as file:
        file.write("first half, ")
        file.flush()
        time.sleep(0.5)
        file.write("second half\n")
    assert follower.stdout.readline() == "jaeger     | first half, second half\n"
    stack("down")
    follower.communicate(timeout=10)
    assert follower.returncode == 0


def test_program_gets_its_own_environment(stack: StackCommand) -> None:
    """Each program has the configurations' variables; nothing that steers the telemetry of the user's programs reaches it."""
    assert (
        stack.up(
            FAKE_OTELCOL="record", FAKE_JAEGER="record", OTEL_SERVICE_NAME="mine", OTELCOL_RED_INTERVAL="1s", JAEGER_OTLP="elsewhere:1"
        )[0]
        == 0
    )
    collector, jaeger = (json.loads((stack.folder / f"{name}.record.json").read_text()) for name in ("otelcol", "jaeger"))
    _, seen = _status(stack)
    addresses = seen["addresses"]
    assert isinstance(addresses, dict)
    prometheus = addresses["Prometheus (metrics)"]
    wanted = {
        "JAEGER_OTLP": "elsewhere:1",
        "OTELCOL_RED_INTERVAL": "1s",
        "PROMETHEUS_OTLP": f"{prometheus}/api/v1/otlp",
        "OTEL_SERVICE_NAME": None,
    }
    assert {name: collector["environment"].get(name) for name in wanted} == wanted
    assert jaeger["environment"]["PROMETHEUS_URL"] == prometheus
    assert [Path(part).name for part in collector["argv"]] == ["--config", "dev.yaml"]


def test_grafana_is_started_if_it_is_there(stack: StackCommand) -> None:
    """With Grafana on PATH and its home beside it, it runs with the bundled provisioning, without login and without calls home."""
    stack.add_program("grafana")
    (stack.bin.parent / "conf").mkdir()
    (stack.bin.parent / "conf" / "defaults.ini").touch()
    code, out, _ = stack.up(FAKE_GRAFANA="record", GF_LOG_MODE="file")
    assert code == 0 and "Grafana (dashboards)" in out and "Graphs of GPU" not in out
    record = json.loads((stack.folder / "grafana.record.json").read_text())
    _, seen = _status(stack)
    addresses = seen["addresses"]
    assert isinstance(addresses, dict)
    wanted = {
        "PROM_URL": addresses["Prometheus (metrics)"],
        "JAEGER_URL": addresses["Jaeger (traces)"],
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_PATHS_PROVISIONING": f"{stack.folder}/grafana/provisioning",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
        "GF_LOG_MODE": "file",
    }
    assert {name: record["environment"][name] for name in wanted} == wanted
    assert record["argv"] == ["server", "--homepath", str(stack.bin.parent)]


def _pid(stack: StackCommand) -> int:
    supervisor = _state(stack)["supervisor"]
    assert isinstance(supervisor, dict) and psutil.pid_exists(supervisor["pid"])
    return int(supervisor["pid"])
