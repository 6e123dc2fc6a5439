"""The parent of a request on another thread: the span where the work was handed over, never another's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
import torch
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from transformers import TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

import inferspan
from tests.cases.models import llama, prompt

X = torch.ones(1, 2)


class Letters:
    """As much of a tokenizer as a streamer needs."""

    def decode(self, ids: Any, **options: Any) -> str:
        """Numbers as text."""
        return "".join(f"{int(i):02d} " for i in ids)


class App:
    """An instrumented module, a model that generates, and the spans of a program around them."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("app")
        self.module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
        self.model = llama()
        options: dict[str, Any] = {"nvml": False, "host": False, "modules": "none", "steps": "none"}
        meters = MeterProvider(shutdown_on_exit=False)
        self.handles = [
            inferspan.instrument(one, tracer_provider=self.provider, meter_provider=meters, **options) for one in (self.module, self.model)
        ]

    def call(self, *_: Any) -> None:
        """One request."""
        self.module(X)

    def generate(self, streamer: Any) -> None:
        """One request with a streamer."""
        self.model.generate(prompt(1, 4), max_new_tokens=2, do_sample=False, streamer=streamer)

    def span(self, name: str) -> Any:
        """A span of the program's, current in its block."""
        return self.tracer.start_as_current_span(name)

    def parents(self) -> list[str | None]:
        """Names of the parents of the requests, in their order."""
        return [self.name(request.parent) for request in self.requests()]

    def links(self) -> list[list[str | None]]:
        """Names of what each request is linked to."""
        return [[self.name(link.context) for link in request.links] for request in self.requests()]

    def requests(self) -> list[ReadableSpan]:
        """Spans of requests, by start."""
        assert inferspan.flush()
        found = [span for span in self.exporter.get_finished_spans() if "inferspan.model.architecture" in (span.attributes or {})]
        return sorted(found, key=lambda span: span.start_time or 0)

    def name(self, context: trace.SpanContext | None) -> str | None:
        """Name of the program's span with this context."""
        names = {span.context.span_id: span.name for span in self.exporter.get_finished_spans() if span.context is not None}
        return names.get(context.span_id) if context is not None else None


@pytest.fixture
def app() -> Iterator[App]:
    """A program."""
    made = App()
    yield made
    for handle in made.handles:
        handle.uninstrument()


def run(target: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Run something in a thread of its own."""
    thread = threading.Thread(target=target, args=args, kwargs=kwargs)
    thread.start()
    thread.join()


# ------------------------------------------------------------------------------------------------------- what finds its parent
def test_thread_is_below_the_span_that_started_it(app: App) -> None:
    """A function of the program's, a method of the model, and a thread started by such a thread."""
    with app.span("a"):
        run(lambda: app.call())
    with app.span("b"):
        run(app.module, X)
    with app.span("c"):
        run(run, app.call)
    assert app.parents() == ["a", "b", "c"]


def test_streamer_brings_its_span(app: App) -> None:
    """Where only the streamer was made in a span, that is the parent; in a second use it belongs to somebody else."""
    with app.span("a"):
        streamer = TextIteratorStreamer(Letters(), skip_prompt=True)  # type: ignore[arg-type]
    run(app.generate, streamer)
    run(app.generate, streamer)
    assert app.parents() == ["a", None]
    assert app.links() == [[], ["a"]]


class Own(TextStreamer):
    """Does without the constructor of its base."""

    def __init__(self, queue_: Any) -> None:
        self.queue = queue_

    def put(self, value: Any) -> None:
        """Take a token."""
        self.queue.put(value)

    def end(self) -> None:
        """Take no more."""


class Base(BaseStreamer):
    """Has no other base, and a hash that needs its attributes."""

    def __init__(self, queue_: Any) -> None:
        self.queue = queue_

    def __hash__(self) -> int:
        return hash(id(self.queue))

    put, end = Own.put, Own.end


class Duck:
    """No streamer by its class."""

    def __init__(self, queue_: Any) -> None:
        self.queue = queue_

    put, end = Own.put, Own.end


class Hidden:
    """A worker whose queue is deeper than anybody looks."""

    def __init__(self, app: App) -> None:
        self.app, self.state = app, type("State", (), {})()
        self.state.inner = type("State", (), {})()
        self.state.inner.jobs = queue.SimpleQueue()

    def serve(self) -> None:
        """Serve until there is None."""
        while (streamer := self.state.inner.jobs.get()) is not None:
            self.app.generate(streamer)


def test_streamer_with_a_constructor_of_its_own(app: App) -> None:
    """It brings the span in which it was made, to a worker of a queue too."""
    jobs: queue.Queue[Any] = queue.Queue()

    def serve() -> None:
        while (streamer := jobs.get()) is not None:
            app.generate(streamer)

    worker = threading.Thread(target=serve)
    worker.start()
    with app.span("a"):
        jobs.put(Own(queue.Queue()))
    jobs.put(None)
    worker.join()
    assert app.parents() == ["a"]


def test_generate_in_a_thread_with_a_streamer(app: App) -> None:
    """The usual way to stream: the model's own method is the target of a thread."""
    with app.span("a"):
        streamer = TextIteratorStreamer(Letters(), skip_prompt=True)  # type: ignore[arg-type]
        kwargs = {"input_ids": prompt(1, 4), "max_new_tokens": 2, "do_sample": False, "streamer": streamer}
        thread = threading.Thread(target=app.model.generate, kwargs=kwargs)
        thread.start()
        assert "".join(streamer).split()
        thread.join()
    assert app.parents() == ["a"]


def test_job_of_a_pool_is_below_the_span_that_gave_it(app: App) -> None:
    """Jobs of one thread that serves many, given in spans, without one, and from another job."""
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as other:
        for name in ("a", "b"):
            with app.span(name):
                pool.submit(app.call).result()
        pool.submit(app.call).result()
        with app.span("c"):
            list(pool.map(app.call, [1]))
        with app.span("d"):
            pool.submit(lambda: other.submit(app.call).result()).result()
    assert app.parents() == ["a", "b", None, "c", "d"]
    assert app.links() == [[]] * 5


@pytest.mark.parametrize("method", ["apply", "apply_async", "map", "starmap", "imap", "imap_unordered"])
def test_job_of_a_pool_of_multiprocessing(app: App, method: str) -> None:
    """Every way to give a job to a ThreadPool that is there when a model is instrumented."""
    with ThreadPool(1) as pool:
        for name in ("a", None, "b"):
            with app.span(name) if name else trace.use_span(trace.INVALID_SPAN):
                given = getattr(pool, method)(app.call, *([] if "apply" in method else [[(1,)]]))
                given.wait() if hasattr(given, "wait") else list(given or ())
    assert app.parents() == ["a", None, "b"]


def test_executors_of_asyncio(app: App) -> None:
    """Tasks that run side by side and share an executor, and to_thread."""

    async def handler(name: str) -> None:
        with app.span(name):
            await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(None, app.call)
            await asyncio.to_thread(app.call)

    async def server() -> None:
        await asyncio.gather(*[handler(name) for name in "abcd"])

    asyncio.run(server())
    assert sorted(filter(None, app.parents())) == sorted("abcd" * 2)


def test_unsampled_span_has_no_sampled_child(app: App) -> None:
    """A handler that is not sampled hands that on, as in one thread."""
    unsampled = TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False).get_tracer("app")
    with unsampled.start_as_current_span("a"):
        run(app.call)
    assert app.requests() == []


# ------------------------------------------------------------------------------------------------ what must not find a parent
def test_worker_that_serves_a_queue_is_nobodys(app: App) -> None:
    """A thread that was started in one handler's span and serves others: roots, with a link to the candidate, whatever it takes jobs from."""
    jobs: queue.Queue[Any] = queue.Queue()

    def serve() -> None:
        while (job := jobs.get()) is not None:
            job()

    def serve_argument(inbox: Any) -> None:
        while (job := inbox.get()) is not None:
            job()

    class Worker(threading.Thread):
        def __init__(self) -> None:
            super().__init__()
            self.inbox = jobs

        def run(self) -> None:
            serve_argument(self.inbox)

    for make in (lambda: threading.Thread(target=serve), lambda: threading.Thread(target=serve_argument, args=(jobs,)), Worker):
        with app.span("starts the worker"):
            worker = make()
            worker.start()
            jobs.put(app.call)
            jobs.put(None)
            worker.join()
    assert app.parents() == [None] * 3
    assert app.links() == [["starts the worker"]] * 3


def test_event_loop_in_a_thread_is_nobodys(app: App) -> None:
    """A server's loop in a thread that was started in a span serves its clients, also in its executor."""

    async def server() -> None:
        app.call()
        await asyncio.get_running_loop().run_in_executor(None, app.call)

    with app.span("a"):
        run(lambda: asyncio.run(server()))
    assert app.parents() == [None, None]
    assert app.links() == [["a"], ["a"]]


def test_worker_whose_span_has_ended_is_nobodys(app: App) -> None:
    """A thread that outlives the span it was started in may be at work for anybody."""
    released = threading.Lock()
    released.acquire()

    def wait() -> None:
        with released:
            app.call()

    with app.span("a"):
        thread = threading.Thread(target=wait)
        thread.start()
    released.release()
    thread.join()
    assert app.parents() == [None]
    assert app.links() == [["a"]]


@pytest.mark.parametrize("kind", [Own, Base, Duck, None], ids=str)
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("caller", ["b", None])
def test_streamer_in_a_worker_never_joins_the_workers_span(app: App, kind: Any, pool: bool, caller: str | None) -> None:
    """A worker whose queue cannot be found serves a streamer of another span, or of none: a root, with links to the candidates."""
    worker = Hidden(app)
    with ThreadPoolExecutor(1) as executor, app.span("starts the worker"):
        # The caller is in a context of its own, as the handler of another request is.
        made: list[Any] = []
        token = otel_context.attach(otel_context.Context())
        try:
            with app.span(caller) if caller else contextlib.nullcontext():
                made.append(kind(queue.Queue()) if kind is not None else TextStreamer(Letters()))  # type: ignore[arg-type]
        finally:
            otel_context.detach(token)
        if pool:
            served = executor.submit(worker.serve)
        else:
            thread = threading.Thread(target=worker.serve)
            thread.start()
        worker.state.inner.jobs.put(made[0])
        worker.state.inner.jobs.put(None)
        served.result() if pool else thread.join()
    assert app.parents() == [None]
    assert "starts the worker" in app.links()[0]


def test_streamer_whose_class_is_defined_later(app: App) -> None:
    """A class of after instrument() is followed, and goes when the program lets go of it."""

    class Late(Own):
        def __init__(self) -> None:
            super().__init__(queue.Queue())

    with app.span("a"):
        streamer = Late()
    run(app.generate, streamer)
    assert app.parents() == ["a"]
    reference = weakref.ref(Late)
    del Late, streamer
    gc.collect()
    assert reference() is None


def test_thread_that_makes_a_streamer_of_its_own(app: App) -> None:
    """A streamer that is made where it is used belongs to whoever started the thread."""
    with app.span("a"):
        run(lambda: app.generate(Own(queue.Queue())))
    assert app.parents() == ["a"]


def test_job_that_serves_a_queue_is_nobodys(app: App) -> None:
    """The same in a pool."""
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with ThreadPoolExecutor(1) as pool:
        with app.span("a"):
            served = pool.submit(lambda: jobs.get()())
        jobs.put(app.call)
        served.result()
    assert app.parents() == [None]
    assert app.links() == [["a"]]


def test_origins_that_contradict_each_other_are_links(app: App) -> None:
    """A streamer of one trace in a job of another: a root, with a link to both."""
    with app.span("a"):
        streamer = TextStreamer(Letters())  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool, app.span("b"):
        pool.submit(app.generate, streamer).result()
    assert app.parents() == [None]
    assert [sorted(map(str, names)) for names in app.links()] == [["a", "b"]]


def test_span_of_the_thread_itself_comes_first(app: App) -> None:
    """A span that is current on the thread is the parent, wherever the thread comes from."""

    def work() -> None:
        with app.span("inner"):
            app.call()

    with app.span("a"):
        run(work)
    assert app.parents() == ["inner"]


def test_nothing_is_attached_for_the_program(app: App) -> None:
    """Spans of the program's own in the thread stay what they were: roots."""
    with app.span("a"), ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: app.tracer.start_span("own").end()).result()
        run(lambda: app.tracer.start_span("own").end())
    assert [span.parent for span in app.exporter.get_finished_spans() if span.name == "own"] == [None, None]


# -------------------------------------------------------------------------------------------------------------- being undone
def test_everything_comes_off_with_the_last_model(app: App) -> None:
    """What is wrapped keeps its signature, and is the original again after the last uninstrument()."""
    watched = [(threading.Thread, "start"), (ThreadPoolExecutor, "submit"), (TextStreamer, "__init__"), (Own, "__init__"), (ThreadPool, "apply_async")]
    wrapped = [getattr(owner, name) for owner, name in watched]
    assert all(hasattr(method, "__wrapped__") for method in wrapped)
    assert [inspect.signature(method) for method in wrapped] == [inspect.signature(method.__wrapped__) for method in wrapped]
    for handle in app.handles:
        handle.uninstrument()
    assert [getattr(owner, name) for owner, name in watched] == [method.__wrapped__ for method in wrapped]
    assert "__init_subclass__" not in vars(BaseStreamer)
    assert Own(queue.Queue()).queue.empty()
    assert "apply_async" not in vars(ThreadPool)


def test_wrapper_of_another_stays(app: App) -> None:
    """What somebody has put over ours stays when ours comes off, and works."""
    ours = threading.Thread.start

    def theirs(self: threading.Thread) -> None:
        ours(self)

    threading.Thread.start = theirs  # type: ignore[method-assign]
    try:
        for handle in app.handles:
            handle.uninstrument()
        assert threading.Thread.start is theirs
        run(app.call)
    finally:
        threading.Thread.start = ours.__wrapped__  # type: ignore[attr-defined,method-assign]


def test_exceptions_and_results_of_jobs_are_the_programs(app: App) -> None:
    """A job's result and exception pass through."""

    def fail() -> None:
        raise KeyError("mine")

    with ThreadPoolExecutor(1) as pool, app.span("a"):
        assert pool.submit(pow, 2, 3).result() == 8
        with pytest.raises(KeyError, match="mine"):
            pool.submit(fail).result()
        with pytest.raises(TypeError):
            pool.submit()  # type: ignore[call-arg]
