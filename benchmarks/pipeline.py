"""What it costs to turn module calls into OTLP and to send them: four ways, measured against a thread that needs the interpreter.

A thread that launches small torch operations stands in for the model: 423 module calls a step, as an eager Llama-8B makes them. Per way:
processor time of this process for each span, spans a second to a receiver in another one, how much longer the model's thread takes
while 423 spans are handed over every ``--step`` milliseconds, memory, and what starting the way costs. Ways: spans of the SDK through its batch processor; bytes
packed span by span; bytes by template (what inferspan does); and a process of its own that gets plain lists through a pipe. A
subinterpreter gets the same lists as another process, since no object may be shared, so that its cost here is that of the process.
"""

from __future__ import annotations

import argparse
import marshal
import os
import statistics
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

MODULES = 423


def batches(count: int, *, first: int = 0) -> list[Any]:
    """Steps as the hooks record them."""
    from inferspan.records import ModuleBatch, ModuleCalls, ModuleInfo, PhaseKey

    infos = INFOS or [
        ModuleInfo(f"model.layers.{n // 13}.self_attn.part{n % 13}", "Linear", n // 13, f"layer {n // 13} part{n % 13}")
        for n in range(MODULES)
    ]
    INFOS[:] = infos
    shapes = SHAPES[0]
    made = []
    for step in range(first, first + count):
        calls = ModuleCalls()
        begin = time.perf_counter_ns()
        for n, info in enumerate(infos):
            calls.add((n, n - n % 13 if n % 13 else -1, info, begin + n * 1000, begin + n * 1000 + 900, shapes, shapes, None, None))
        made.append(ModuleBatch(step, PhaseKey("decode", 0), time.time_ns() - begin, calls, {}))
    return made


INFOS: list[Any] = []
SHAPES: list[Any] = [(((1, 1, 4096), "torch.bfloat16"),)]


class Sdk:
    """Spans of the SDK, made afterwards and given to its batch processor."""

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=200_000, max_export_batch_size=4096))
        self.request = request(self.provider, sink=None)

    def write(self, batch: Any, pause: Callable[[], None]) -> None:
        """Hand one step over."""
        from inferspan.spans.finished import finished_spans

        for span in finished_spans(self.request, batch):
            self.request.writer._hand_in(self.request, span)
        pause()

    def finish(self) -> None:
        """Wait until everything is gone."""
        self.provider.force_flush(120_000)

    def close(self) -> None:
        """End threads and processes."""
        self.provider.shutdown()


class Packed:
    """Bytes made on the hand-over thread, by template or span by span."""

    def __init__(self, *, template: bool = True) -> None:
        from opentelemetry import trace

        import inferspan.export.otlp as otlp
        from inferspan.spans.packed.detail import PackedDetail

        otlp.configure()
        self.sink: Any = otlp.raw_sink(trace.get_tracer_provider())
        self.request = request(trace.get_tracer_provider(), sink=self.sink)
        self.packed = PackedDetail()
        if not template:
            modules: Any = self.packed._modules
            modules._templates = lambda *_: None

    def write(self, batch: Any, pause: Callable[[], None]) -> None:
        """Hand one step over."""
        self.packed.write(self.request, batch, pause)

    def finish(self) -> None:
        """Wait until everything is gone."""
        self.sink.flush(120)

    def close(self) -> None:
        """Nothing of its own."""


class Process:
    """Plain lists through a pipe to a process that packs and sends."""

    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.pipeline", "--sidecar"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.child.stdin is not None and self.child.stdout is not None
        self.pipe, self.answers = self.child.stdin.fileno(), self.child.stdout
        self.answers.read(1)
        self.index = {id(info): place for place, info in enumerate(INFOS)}

    def write(self, batch: Any, pause: Callable[[], None]) -> None:
        """Hand one step over."""
        calls = batch.calls.columns()
        # Modules and shapes are objects of this process: the other one knows them by number.
        modules = [self.index[id(info)] for info in calls.modules]
        shapes = [0 for _ in calls.inputs]
        data = marshal.dumps(
            (batch.step, batch.offset, calls.numbers, calls.parents, modules, calls.starts, calls.ends, shapes, shapes)
        )
        self.send(data)
        pause()

    def send(self, data: bytes) -> None:
        view = memoryview(struct.pack("<I", len(data)) + data)
        while view:
            view = view[os.write(self.pipe, view) :]

    def finish(self) -> None:
        """Wait until everything is gone."""
        self.send(b"")
        self.answers.read(1)

    def close(self) -> None:
        """End the process."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(30)


def sidecar() -> None:
    """The other process."""
    batches(1)
    from inferspan.records import ModuleBatch, ModuleCalls, PhaseKey

    way = Packed()
    shape = SHAPES[0]
    sys.stdout.buffer.write(b".")
    sys.stdout.buffer.flush()
    while head := sys.stdin.buffer.read(4):
        data = sys.stdin.buffer.read(struct.unpack("<I", head)[0])
        if not data:
            way.finish()
            sys.stdout.buffer.write(b".")
            sys.stdout.buffer.flush()
            continue
        step, offset, numbers, parents, modules, starts, ends, _, _ = marshal.loads(data)
        infos = [INFOS[module] for module in modules]
        columns = zip(numbers, parents, infos, starts, ends, strict=True)
        calls = ModuleCalls((*row, shape, shape, None, None) for row in columns)
        way.write(ModuleBatch(step, PhaseKey("decode", 0), offset, calls, {}), lambda: None)


def request(provider: Any, *, sink: Any) -> Any:
    """A request whose detail is to be written."""
    from opentelemetry import metrics

    from inferspan.export.sdk import span_parts
    from inferspan.metrics.requests import RequestMetrics
    from inferspan.records import ModelInfo, RequestStart
    from inferspan.settings import Settings
    from inferspan.spans.request import RequestSpan
    from inferspan.spans.writer import SpanWriter

    tracer = provider.get_tracer("inferspan")
    start = RequestStart("generate", "text_completion", ModelInfo("m", "huggingface", "M", {}), 0, False, {})
    made: Any = RequestSpan(start, tracer.start_span("request"), RequestMetrics(lambda: metrics.get_meter("benchmark"), Settings()))
    made.tracer, made.parts, made.sender, made.writer = tracer, span_parts(tracer), sink, SpanWriter()
    return made


def processor(way: Any, rounds: int) -> tuple[float, float]:
    """Microseconds of processor for each span, the fastest of some rounds: of the thread that hands over, and of all threads of this process."""
    steps = batches(8)
    own, whole = [], []
    for _ in range(rounds):
        begun, all_begun = time.thread_time(), time.process_time()
        for step in steps:
            way.write(step, lambda: None)
        own.append(time.thread_time() - begun)
        way.finish()
        whole.append(time.process_time() - all_begun)
    return min(own) / len(steps) / MODULES * 1e6, min(whole) / len(steps) / MODULES * 1e6


def rate(way: Any, steps: int) -> float:
    """Spans a second until all have arrived, with the pauses of the hand-over."""
    made = batches(steps)
    begun = time.perf_counter()
    for step in made:
        way.write(step, lambda: time.sleep(0.001))
    way.finish()
    return steps * MODULES / (time.perf_counter() - begun)


def slower(way: Any, steps: int, milliseconds: float, pairs: int) -> tuple[float, float]:
    """How much longer a launch-bound thread takes for its steps while they are handed over: median and fastest against fastest."""
    import torch

    one = torch.ones(8)

    def operations(count: int) -> None:
        for _ in range(count):
            one.add(1.0)

    torch.set_num_threads(1)
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < 0.5:
        operations(1000)
        count += 1000
    step_length = int(count * milliseconds / 500)

    def run(hand_over: bool) -> float:
        made, done = batches(steps), threading.Event()
        queue: list[Any] = []

        def consume() -> None:
            taken = 0
            while taken < steps:
                wake.wait()
                wake.clear()
                while queue:
                    way.write(queue.pop(0), lambda: time.sleep(0.001))
                    taken += 1
            done.set()

        wake = threading.Event()
        if hand_over:
            threading.Thread(target=consume, daemon=True).start()
        begun = time.perf_counter()
        for batch in made:
            operations(step_length)
            if hand_over:
                queue.append(batch)
                wake.set()
        seconds = time.perf_counter() - begun
        if hand_over:
            done.wait(60)
            way.finish()
        return seconds

    plain, busy = [], []
    for _ in range(pairs):
        plain.append(run(hand_over=False))
        busy.append(run(hand_over=True))
    return statistics.median(one / other for one, other in zip(busy, plain, strict=True)), min(busy) / min(plain)


WAYS: dict[str, Callable[[], Any]] = {
    "SDK spans, batch processor": Sdk,
    "packed span by span": lambda: Packed(template=False),
    "packed by template": Packed,
    "another process": Process,
}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sidecar", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--step", type=float, default=25.0, help="milliseconds of one step of the model (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="steps of one run (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=7, help="pairs of runs (default: %(default)s)")
    parser.add_argument("--only", default="", help="ways whose names hold this")
    options = parser.parse_args()
    if options.sidecar:
        sidecar()
        return
    from benchmarks.receiver import count, receiver

    with receiver() as address:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = address
        os.environ.setdefault("OTEL_METRICS_EXPORTER", "none")
        batches(1)
        print(
            "| way | us a span, hand-over thread | all threads | spans/s | model slower, median | fastest | memory | start |\n|---|---|---|---|---|---|---|---|"
        )
        for name, make in WAYS.items():
            if options.only not in name:
                continue
            begun = time.perf_counter()
            way = make()
            start = time.perf_counter() - begun
            own, whole = processor(way, 9)
            count(address)
            speed = rate(way, 240)
            arrived = count(address).total
            assert arrived == 240 * MODULES, f"{name}: {arrived} spans of {240 * MODULES} arrived"
            middle, fastest = slower(way, options.steps, options.step, options.pairs)
            made = batches(20)
            tracemalloc.start()
            for batch in made:
                way.write(batch, lambda: None)
            memory = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            way.finish()
            way.close()
            print(
                f"| {name} | {own:.2f} | {whole:.2f} | {speed:,.0f} | {middle:.3f} | {fastest:.3f} | {memory / 2**20:.1f} MiB | {start * 1e3:.0f} ms |",
                flush=True,
            )


if __name__ == "__main__":
    main()
