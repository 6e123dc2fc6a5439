"""Whole programs: providers that come late, forks, exits, missing packages. Each runs in an interpreter of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

BEGIN = """
import os, sys, threading, time
import torch, inferspan
torch.set_num_threads(1)
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
def host():
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, MeterProvider([reader], shutdown_on_exit=False)
def names():
    inferspan.flush()
    return [span.name for span in exporter.get_finished_spans()]
def points():
    data = reader.get_metrics_data()
    return {metric.name: [getattr(point, "value", None) or getattr(point, "sum", None) for point in metric.data.data_points]
            for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics for metric in scope.metrics}
def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("inferspan")]
"""


def _run(program: str, *arguments: str, environ: dict[str, str] | None = None, code: int = 0) -> str:
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "INFERSPAN_", "COV_"))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGIN + program, *arguments],
        env={**variables, **(environ or {})}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + "\n" + done.stderr


def _session(path: Path) -> tuple[Counter[str], set[str], list[str]]:
    """Span names, metric names and span ids of a session file, all of whose lines are whole."""
    spans: Counter[str] = Counter()
    metrics: set[str] = set()
    ids: list[str] = []
    for line in path.read_text().splitlines():
        data: dict[str, Any] = json.loads(line)
        for resource in data.get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                spans.update(span["name"] for span in scope["spans"])
                ids += [span["spanId"] for span in scope["spans"]]
        for resource in data.get("resourceMetrics", ()):
            for scope in resource["scopeMetrics"]:
                metrics.update(metric["name"] for metric in scope["metrics"])
    return spans, metrics, ids


def test_late_providers() -> None:
    """A host that sets its providers after ``instrument()`` gets spans, metrics and readings from then on; they stay the host's."""
    out = _run("""
with inferspan.instrument(net, model_name="m") as handle:
    net(torch.ones(1, 4))
    tracers, meters = host()
    trace.set_tracer_provider(tracers); metrics.set_meter_provider(meters)
    net(torch.ones(1, 4))
    assert names() == ["forward m", "layer 0", "layer 1"] or sorted(names()) == ["forward m", "layer 0", "layer 1"], names()
    found = points()
    assert found["inferspan.forward.duration"] and len(found["process.memory.usage"]) == 1 and found["process.memory.usage"][0] > 1e6
    assert all(value > 0 for value in found["process.cpu.time"][:1])
    with inferspan.instrument(other := torch.nn.Linear(4, 4), meter_provider=meters, tracer_provider=tracers):
        assert len(points()["process.memory.usage"]) == 1
    assert handle.summary().forwards == 2
assert trace.get_tracer_provider() is tracers and metrics.get_meter_provider() is meters
assert "inferspan-samplers" not in threads()
print("done")
""")
    assert "done" in out and out.count("inferspan sends nothing anywhere") == 1


def test_no_destination() -> None:
    """With no destination one line says so, once in a process; nothing is set up, and the totals are there."""
    out = _run("""
for _ in range(3):
    with inferspan.instrument(net, host=False, nvml=False, allocator=False) as handle:
        net(torch.ones(1, 4))
        assert handle.summary().forwards == 1
with inferspan.instrument(net, auto_configure=False):
    pass
assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"
""")
    assert out.count("inferspan sends nothing anywhere") == 1
    assert "inferspan" not in _run("inferspan.instrument(net, auto_configure=False)")


def test_light_import() -> None:
    """Importing the package loads no framework and no SDK, and starts nothing."""
    done = subprocess.run(
        [sys.executable, "-c", """
import sys, threading
import inferspan
inferspan.Settings, inferspan.context, inferspan.SettingsError
heavy = {"torch", "transformers", "pynvml", "psutil", "opentelemetry.sdk"} & set(sys.modules)
inferspan.instrument, inferspan.flush, inferspan.configure
assert not heavy and threading.active_count() == 1 and not {"torch", "transformers", "pynvml"} & set(sys.modules), heavy
"""], capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["inferspan.flush(0)", "inferspan.Handle", "import inferspan.instrument", "from inferspan.instrument import flush",
                                   "from inferspan import flush, instrument"])  # fmt: skip
def test_order_of_imports(first: str) -> None:
    """``inferspan.instrument`` is the function, whatever was used or imported before."""
    program = f"import inferspan\n{first}\nassert type(inferspan.instrument).__name__ == 'function'"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", ["transformers,psutil,pynvml,yaml", "opentelemetry.exporter,grpc"])
def test_missing_packages(missing: str) -> None:
    """A plain module is instrumented without the packages that others need; a destination that needs one is a line in the log."""
    out = _run(
        """
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in sys.argv[1].split(",")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for name in [name for name in sys.modules if name.split(".")[0] in ("psutil", "pynvml", "transformers")]:
    del sys.modules[name]
sys.meta_path.insert(0, Blocker())
if "exporter" in sys.argv[1]:
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
tracers, meters = host()
trace.set_tracer_provider(tracers)
with inferspan.instrument(net):
    net(torch.ones(1, 4))
assert len(names()) == 3
from inferspan.guard import error_counts
assert error_counts() == {}, error_counts()
""",
        missing,
    )
    assert ("sends no metrics to otlp_proto_http" in out) == ("exporter" in missing)


EXITS = """
how, path = sys.argv[1:]
handle = inferspan.instrument(net, session_file=path, flush_on_sigterm=how == "sigterm")
for _ in range(5):
    net(torch.ones(1, 4))
if how == "exit":
    sys.exit(3)
if how == "exception":
    raise KeyError
if how == "sigterm":
    import signal
    os.kill(os.getpid(), signal.SIGTERM)
if how == "os_exit":
    inferspan.flush(5)
    net(torch.ones(1, 4))
    os._exit(0)
if how == "late":
    import atexit
    atexit._run_exitfuncs()
    net(torch.ones(1, 4))
if how == "uninstrument":
    handle.uninstrument()
"""


@pytest.mark.parametrize(
    ("how", "code"), [("normal", 0), ("exit", 3), ("exception", 1), ("sigterm", -signal.SIGTERM), ("os_exit", 0), ("late", 0), ("uninstrument", 0)]
)  # fmt: skip
def test_exits(how: str, code: int, tmp_path: Path) -> None:
    """However a program ends, what it recorded is in the session file, as whole lines, with a reading of the machine; late calls are silent."""
    path = tmp_path / "session.jsonl"
    out = _run(EXITS, how, str(path), code=code)
    spans, metrics, ids = _session(path)
    assert spans == {"forward Sequential": 5, "layer 0": 5, "layer 1": 5} and len(set(ids)) == 15
    assert {"inferspan.forward.duration", "process.memory.usage"} <= metrics
    assert how == "exception" or "Traceback" not in out


COUNTS = """
import gc
tracers, meters = host()
def collections():
    inferspan.flush()
    return sum(value or 0 for value in points().get("cpython.gc.collections", ()))
def wait_for(least):
    while collections() < least:
        time.sleep(0.1)
    return collections()
def instrument():
    return inferspan.instrument(net, tracer_provider=tracers, meter_provider=meters, nvml=False, host_interval=1)
def read_anew():
    before = points().get("process.uptime")
    while points().get("process.uptime") == before:
        time.sleep(0.1)
with instrument():
    while "cpython.gc.collections" not in points():
        time.sleep(0.1)
    [gc.collect(0) for _ in range(5_000)]
    first = wait_for(5_000)
"""


def test_counters_do_not_fall_where_a_model_is_instrumented_again() -> None:
    """They go on from where the readings of the first handle have ended."""
    again = """
with instrument():
    read_anew()
    print("FELL" if collections() < first else "went on")
"""
    assert _run(COUNTS + again).split() == ["went", "on"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_counters_of_a_child_begin_at_zero() -> None:
    """Also where those of its parent were continued."""
    child = """
handle = instrument()
if os.fork() == 0:
    net(torch.ones(1, 4))
    read_anew()
    print("at zero" if collections() < 5_000 else "at its parent's", flush=True)
    os._exit(0)
os.wait()
"""
    assert _run(COUNTS + child).split() == ["at", "zero"]


# No matrix product: a fork while another thread is inside one can leave a lock of the numeric library held in the child for ever.
FORKS = """
path = sys.argv[1]
net = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Identity())
handle = inferspan.instrument(net, session_file=path)
net(torch.ones(1, 4))
assert inferspan.flush(10)
stop = threading.Event()
def work():
    while not stop.is_set():
        net(torch.ones(1, 4))
worker = threading.Thread(target=work)
worker.start()
children = []
for number in range(4):
    child = os.fork()
    if child == 0:
        import signal
        signal.alarm(30)
        idle = "inferspan-samplers" in threads()
        with inferspan.context(user_id=f"child-{number}"):
            net(torch.ones(1, 4))
        good = inferspan.flush(10) and not idle and "inferspan-samplers" in threads()
        os._exit(0 if good else 1)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
stop.set()
worker.join()
assert codes == [0, 0, 0, 0], codes
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forks(tmp_path: Path) -> None:
    """Children of a busy parent send spans of their own, sample only once they run a model, and share no id with anybody."""
    path = tmp_path / "session.jsonl"
    _run(FORKS, str(path))
    _, _, ids = _session(path)
    assert len(ids) == len(set(ids))
    text = path.read_text()
    assert all(text.count(f'"child-{number}"') == 1 for number in range(4))
