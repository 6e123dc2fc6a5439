"""A Ray cluster of one node for a test: small, on free ports, in a folder of its own, and gone at the end.

In: the variables of a service. Out: a ``Cluster``, which runs an application of Ray Serve. All processes of the cluster inherit a variable
with its name, by which they are found: ``ray stop`` would end other clusters of the machine as well. What can fail: cluster or
application do not start in time (``RuntimeError`` with the end of their log).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.integration.services.running import Service, wait_until
from tests.support.ports import free_ports

__all__ = ["Cluster", "alive", "cluster"]

SERVE = "ray.serve.scripts"
MARK = "RAY_CLUSTER_OF_TEST"
OBJECT_STORE = 100 * 2**20
COMMAND_TIMEOUT = 180.0
LIMITS = {
    # Workers are not to be ended because other programs have filled the machine's memory.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Replicas would wait for every other program of a busy machine.
    "RAY_worker_niceness": "0",
    # Ray gives up earlier by itself where a machine is slow.
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_worker_register_timeout_seconds": "120",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    # By its name for other systems: the cluster listens on the loopback only.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
}


class Cluster:
    """A running cluster.

    Args:
        port: of its control service.
        http: where applications answer.
        variables: of the commands that talk to it.
        log: what they write.
        mark: by which its processes are found.
    """

    def __init__(self, port: int, http: int, variables: dict[str, str], log: Path, mark: str) -> None:
        self.address = f"127.0.0.1:{port}"
        self.http = http
        self.variables = variables
        self.log = log
        self.mark = mark

    def command(self, module: str, *arguments: str) -> None:
        """Run a command of Ray to its end; ``RuntimeError`` with its output if it fails."""
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
        with self.log.open("a") as log:
            log.write(done.stdout + done.stderr)
        if done.returncode:
            raise RuntimeError(done.stdout[-4000:] + done.stderr[-4000:])

    @contextmanager
    def application(self, name: str, folder: Path) -> Iterator[Service]:
        """Run an application as ``serve run`` does until the block ends, or until an interrupt stops it."""
        command = [sys.executable, "-m", SERVE, "run", "--address", self.address, name]
        with self.log.open("ab") as output:
            process = subprocess.Popen(command, cwd=folder, env=self.variables, stdout=output, stderr=output)
        try:
            wait_until(lambda: "is ready at" in self.output(), process, self.output)
            yield Service(process, f"http://127.0.0.1:{self.http}")
        finally:
            process.kill()
            process.wait(30)

    def output(self) -> str:
        """What the cluster and its applications have written."""
        return self.log.read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """All of the cluster that run. Some overwrite their variables by a title: they are children of others."""
        marked = [process for process in psutil.process_iter() if _is_marked(process, self.mark)]
        found = {process.pid: process for process in marked}
        for process in marked:
            with suppress(psutil.Error):
                found |= {child.pid: child for child in process.children(recursive=True)}
        return [process for process in found.values() if alive(process)]


def _is_marked(process: psutil.Process, mark: str) -> bool:
    with suppress(psutil.Error, OSError):
        return process.environ().get(MARK) == mark
    return False


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; one that only waits for its parent does not."""
    with suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def cluster(variables: dict[str, str], log: Path) -> Iterator[Cluster]:
    """Run a cluster with two CPUs and Ray Serve until the block ends; then all of its processes have ended, also after a failure."""
    port, http, agent, client = free_ports(4)
    mark = uuid.uuid4().hex
    variables = {**variables, **LIMITS, MARK: mark, "RAY_AUTH_TOKEN": mark}
    # Not in the folder of the test: paths of sockets have at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        running = Cluster(port, http, variables, log, mark)
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats", "--include-dashboard=false",
            "--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client}",
            f"--dashboard-agent-listen-port={agent}",
            # Else workers take all from 10002 to 19999, and Ray refuses a port of its own among them.
            "--min-worker-port=0", "--max-worker-port=0",
            "--num-cpus=2", "--num-gpus=0", f"--object-store-memory={OBJECT_STORE}",
            f"--temp-dir={folder}",
        ]  # fmt: skip
        with log.open("ab") as output:
            head = subprocess.Popen(command, env=running.variables, stdout=output, stderr=output)
        try:
            wait_until(lambda: "will now block" in running.output(), head, running.output)
            running.command(SERVE, "start", "--address", running.address, "--http-port", str(http))
            yield running
        finally:
            _end(head, running)


def _end(head: subprocess.Popen[bytes], running: Cluster) -> None:
    """End the node by SIGTERM, upon which it ends its processes, and whatever is left after that."""
    known = running.processes()
    head.terminate()
    with suppress(subprocess.TimeoutExpired):
        head.wait(20)
    # A process that ends may start another one meanwhile.
    for _ in range(20):
        left = {process.pid: process for process in [*known, *running.processes()] if alive(process)}
        for process in left.values():
            with suppress(psutil.Error):
                process.kill()
        if not left:
            break
        psutil.wait_procs(left.values(), timeout=5)
    head.wait(30)
