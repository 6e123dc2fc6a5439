"""A program that loads Dynamo in the middle of a recorded pass; in processes of their own, since it cannot be unloaded."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading

import pytest

from inferspan.capture.compile.watch import Compiling


class Watcher:
    """One that is told."""

    def compilation_begins(self) -> None:
        """Dynamo begins."""

    def scripting(self, *, begins: bool) -> None:
        """TorchScript begins or ends."""

    def compilation_ends(self) -> None:
        """Dynamo ends."""


HEAD = """
    import sys, torch, inferspan
    from torch import nn
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from inferspan.capture.modules.observer import ObservedCall

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    inside = []

    class Part(nn.Linear):
        def forward(self, value):
            inside.append(type(self.__dict__.get("_compiled_call_impl")))
            return super().forward(value)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.compile = Part(4, 4), Part(4, 4), False

        def forward(self, value):
            value = self.first(value)
            if self.compile:
                assert "torch._dynamo" not in sys.modules
                self.answer = torch.compile(self.second, backend="eager", fullgraph=True)(value)
            return self.second(value)

    model = Model()
    before = list(sys.meta_path)
    handle = inferspan.instrument(
        model, tracer_provider=provider, meter_provider=MeterProvider([]), modules="all", nvml=False, host=False, every_step=True
    )
    ones = torch.ones(2, 4)

    def run():
        exporter.clear()
        with torch.no_grad():
            answer = model(ones)
        inferspan.flush()
        return answer, sorted(span.name for span in exporter.get_finished_spans())
"""


def _run(body: str) -> str:
    code = textwrap.dedent(HEAD) + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_first_pass_is_observed_as_later_ones_are() -> None:
    """Where Dynamo was never loaded, no hook is registered in the first pass either."""
    assert (
        _run(
            """
        first, second = run(), run()
        assert inside == [ObservedCall] * 4, inside
        assert first[1] == second[1] and len(first[1]) == 3, first[1]
        print("torch._dynamo" in sys.modules)
        """
        )
        == "False"
    )


@pytest.mark.parametrize("earlier", [0, 2], ids=["in the first pass", "in a later pass"])
def test_dynamo_is_loaded_in_the_middle_of_a_pass(earlier: int) -> None:
    """What a pass compiles while Dynamo is loaded for it sees nothing of ours: frames, graphs and recompilations are those of a plain run."""
    body = f"""
        for _ in range({earlier}):
            run()
        model.compile = True
        answer, names = run()
        assert torch.equal(answer, model.answer)
        handle.uninstrument()
        with torch.no_grad():
            torch.compile(model.second, backend="eager", fullgraph=True)(model.first(ones))
        counters = torch._dynamo.utils.counters
        print(names)
        print(counters["frames"], counters["stats"], counters["graph_break"], counters["recompiles"])
    """
    names, counted = _run(body).splitlines()
    plain, want = _run("handle.uninstrument()\n" + textwrap.dedent(body)).splitlines()
    assert counted == want
    assert plain == "[]" and names.count("first") == 1


def test_nothing_is_left_among_the_importers() -> None:
    """What watches for Dynamo, and for pipelines, stands in ``sys.meta_path`` while a model is instrumented, and not after."""
    assert (
        _run(
            """
        run()
        during = len(sys.meta_path) - len(before)
        handle.uninstrument()
        print(during, sys.meta_path == before)
        """
        )
        == "2 True"
    )


@pytest.mark.parametrize("how", ["kept", "dropped"])
def test_importers_are_not_taken_out_under_an_import(how: str) -> None:
    """An import that goes through the importers while the last model is let go, by another's code or by the collector, skips none."""
    assert (
        _run(
            f"""
        import gc, importlib.machinery

        class LetsGo:
            def find_spec(self, name, path=None, target=None):
                global model, handle
                if name == "found_late":
                    if {how == "kept"}:
                        handle.uninstrument()
                    model = handle = None
                    gc.collect()

        class FindsLate:
            def find_spec(self, name, path=None, target=None):
                return importlib.machinery.ModuleSpec(name, self) if name == "found_late" else None

            def create_module(self, spec):
                return None

            def exec_module(self, module):
                pass

        others = [LetsGo(), FindsLate()]
        sys.meta_path += others
        import found_late
        again = nn.Linear(2, 2)
        inferspan.instrument(again, tracer_provider=provider, meter_provider=MeterProvider([]), nvml=False, host=False).uninstrument()
        print(sys.meta_path == before + others)
        """
        )
        == "True"
    )


def test_an_import_under_compiled_code_is_not_compiled() -> None:
    """What watches for Dynamo is a frame that runs below compiled code that imports something; so is what observes a module it calls."""
    body = """
        import torch._dynamo

        @torch._dynamo.disable(recursive=False)
        def imports(value):
            import colorsys, sndhdr
            return value

        torch.compile(lambda value: imports(value) + 1, backend="eager")(ones)
        print(torch._dynamo.utils.counters["frames"], torch._dynamo.utils.counters["stats"])
    """
    assert _run(body) == _run("handle.uninstrument()\n" + textwrap.dedent(body))


def test_nothing_of_ours_is_compiled_on_the_way_to_what_is() -> None:
    """A module that is compiled and called as a whole in the middle of a pass is called through what observes it, once."""
    body = """
        class Whole(Model):
            def forward(self, value):
                return torch.compile(self.second, backend="eager")(self.first(value)) + self.first(value)

        model.__class__ = Whole
        run()
        print(torch._dynamo.utils.counters["frames"], torch._dynamo.utils.counters["stats"])
    """
    assert _run(body) == _run("handle.uninstrument()\n" + textwrap.dedent(body))


@pytest.mark.parametrize("kind", ["settrace", "setprofile"])
def test_imported_under_a_tracer(kind: str) -> None:
    """A debugger that looks at every frame's variables while this package is imported hides no copy from what observes, later."""
    code = f"""
    import sys

    def look(frame, *_):
        frame.f_locals
        return look

    sys.{kind}(look)
    import inferspan.capture.modules.observer
    sys.{kind}(None)
    """
    body = """
        import copy

        class Copying(Model):
            def forward(self, value):
                twin = copy.copy(self.second)
                twin._parameters = {"weight": torch.eye(4), "bias": torch.zeros(4)}
                return twin(value)

        model.__class__ = Copying
        print(torch.equal(run()[0], ones))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code) + textwrap.dedent(HEAD) + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"


def test_a_model_is_collected_while_another_begins_a_pass() -> None:
    """Whoever is gone leaves on the thread that happens to collect it, whatever that thread holds."""
    watch, kept, done = Compiling(), Watcher(), []

    def collected() -> None:
        left = Watcher()
        watch.watch(left)
        with watch._lock:
            watch.leave(left)
        done.append(watch.watch(kept))

    thread = threading.Thread(target=collected, daemon=True)
    thread.start()
    thread.join(10)
    assert len(done) == 1
    assert watch._all() == [kept]
    watch.watch(Watcher())
    gc.collect()
    assert watch._all() == [kept]
    watch.leave(kept)
    assert watch._all() == []
