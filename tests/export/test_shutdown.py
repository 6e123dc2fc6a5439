"""Flushing and closing under one deadline, at the end of a process, on SIGTERM and after fork."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

from inferspan import guard
from inferspan.export.shutdown import Pipeline, Pipelines


class Fake:
    """A pipeline that notes what is asked of it, and may take its time."""

    def __init__(self, name: str, *, blocks: threading.Event | None = None, success: bool = True, order: list[str] | None = None) -> None:
        self.calls: list[str] = [] if order is None else order
        self.limits: list[float] = []
        self._blocks, self._success = blocks, success
        self.pipeline = Pipeline(name, self._flush, self._close)

    def _flush(self, seconds: float) -> bool:
        self.calls.append("flush")
        self.limits.append(seconds)
        if self._blocks:
            self._blocks.wait(10)
        return self._success

    def _close(self, seconds: float) -> None:
        self.calls.append("close")
        self.limits.append(seconds)
        if self._blocks:
            self._blocks.wait(10)


def owned(*fakes: Fake) -> Pipelines:
    """Pipelines that hold the fakes."""
    pipelines = Pipelines()
    for fake in fakes:
        pipelines.add(fake.pipeline)
    return pipelines


def test_flush_reaches_every_pipeline() -> None:
    """Each pipeline is flushed with the time that is left, and all successes make one."""
    first, second = Fake("first"), Fake("second")
    assert owned(first, second).force_flush(5)
    assert first.calls == second.calls == ["flush"]
    assert all(4 < limit <= 5 for limit in first.limits + second.limits)


def test_flush_that_fails_is_reported() -> None:
    """One pipeline that could not send makes the whole flush fail, after the others were flushed too."""
    bad, good = Fake("bad", success=False), Fake("good")
    assert not owned(bad, good).force_flush(5)
    assert good.calls == ["flush"]


def test_pipelines_that_hang_share_one_deadline() -> None:
    """Three pipelines that never finish hold the caller up for one time limit, and the fourth is closed all the same."""
    never = threading.Event()
    hanging = [Fake(str(number), blocks=never) for number in range(3)]
    good = Fake("good")
    pipelines = owned(*hanging, good)
    before = time.monotonic()
    assert not pipelines.shutdown(0.3)
    # Without the shared deadline it would never return; how long a loaded machine takes is no fact about the code.
    assert time.monotonic() - before >= 0.25
    assert good.calls == ["close"]
    never.set()


def test_second_shutdown_has_nothing_to_do() -> None:
    """Pipelines are closed once, whoever asks how often."""
    fake = Fake("once")
    pipelines = owned(fake)
    assert pipelines.shutdown(5)
    assert pipelines.shutdown(5)
    assert pipelines.force_flush(5)
    assert fake.calls == ["close"]


def test_threads_end_with_the_pipelines() -> None:
    """After the shutdown no thread of theirs is left."""
    pipelines = owned(Fake("unique-name"))
    assert "inferspan-unique-name" in [thread.name for thread in threading.enumerate()]
    pipelines.shutdown(5)
    deadline = time.monotonic() + 5
    while "inferspan-unique-name" in [thread.name for thread in threading.enumerate()] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "inferspan-unique-name" not in [thread.name for thread in threading.enumerate()]


def test_sources_hand_over_first() -> None:
    """A source is asked before each flush and before the end, until it is removed; one that fails does not stop the rest."""
    order: list[str] = []
    pipelines = Pipelines()
    sink = Fake("sink", order=order)
    pipelines.add(sink.pipeline)
    remove = pipelines.flush_first(lambda: order.append("source"))
    assert pipelines.force_flush(5)
    assert pipelines.shutdown(5)
    remove()
    assert pipelines.force_flush(5)
    assert order == ["source", "flush", "source", "close"]


def test_source_that_raises_is_contained(contained: list[guard.Swallowed]) -> None:
    """An error while handing over makes the flush unsuccessful, and the pipelines are flushed nevertheless."""
    fake = Fake("sink")
    pipelines = owned(fake)

    def source() -> None:
        raise RuntimeError("no")

    pipelines.flush_first(source)
    assert not pipelines.force_flush(5)
    assert fake.calls == ["flush"]
    assert [(error.place, error.kind) for error in contained] == [("source pipeline", "RuntimeError")]
    contained.clear()


PROGRAM = """
import os, signal, sys, threading, time
from inferspan.export.shutdown import Pipeline, Pipelines
pipelines = Pipelines()
pipelines.add(Pipeline("p", lambda s: print("flush", flush=True) is None, lambda s: print("close", flush=True)))
"""


def run(body: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that owns one pipeline."""
    script = path / "program.py"
    script.write_text(PROGRAM + textwrap.dedent(body))
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)


def test_closed_at_exit(tmp_path: Path) -> None:
    """The end of the program closes the pipelines, also after an exception of the program."""
    result = run("pipelines.close_at_exit(5)\nraise ValueError('mine')", tmp_path)
    assert (result.returncode, result.stdout) == (1, "close\n")
    assert result.stderr.endswith("ValueError: mine\n")


def test_exit_is_not_held_up_longer_than_promised(tmp_path: Path) -> None:
    """A pipeline that never closes holds the exit up for the promised time, which the latest call sets."""
    body = """
    pipelines.add(Pipeline("hangs", lambda s: True, lambda s: time.sleep(3600)))
    pipelines.close_at_exit(30)
    pipelines.close_at_exit(1)
    """
    result = run(body, tmp_path)
    # It has ended at all: without the limit it would for an hour not.
    assert result.stdout == "close\n"


def test_process_of_multiprocessing_closes_its_own(tmp_path: Path) -> None:
    """A forked process of multiprocessing, which ends without atexit, closes its pipelines as well as its parent does."""
    body = """
    import multiprocessing
    pipelines.close_at_exit(5)
    process = multiprocessing.get_context("fork").Process(target=print, args=("child",), kwargs={"flush": True})
    process.start()
    process.join()
    print("parent", flush=True)
    """
    result = run(body, tmp_path)
    assert (result.returncode, result.stdout) == (0, "child\nclose\nparent\nclose\n"), result.stderr


def test_sigterm_flushes_then_kills(tmp_path: Path) -> None:
    """SIGTERM flushes, and then ends the process with that signal as it would have without us."""
    result = run("print(pipelines.flush_at_sigterm(5), flush=True)\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(5)", tmp_path)
    assert (result.returncode, result.stdout) == (-signal.SIGTERM, "True\nflush\n")


def test_sigterm_flushes_then_calls_the_previous_handler(tmp_path: Path) -> None:
    """The program's own handler runs after the flush; an ignored signal stays ignored."""
    body = """
    signal.signal(signal.SIGTERM, lambda number, frame: print("handler", number, flush=True))
    pipelines.flush_at_sigterm(5)
    pipelines.flush_at_sigterm(5)
    os.kill(os.getpid(), signal.SIGTERM)
    print("alive")
    """
    assert run(body, tmp_path).stdout == f"flush\nhandler {signal.SIGTERM.value}\nalive\n"
    ignored = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\npipelines.flush_at_sigterm(5)\nos.kill(os.getpid(), signal.SIGTERM)\nprint('alive')"
    )
    assert run(ignored, tmp_path).stdout == "flush\nalive\n"


def test_sigterm_is_left_alone_off_the_main_thread(tmp_path: Path) -> None:
    """On another thread no handler can be set, and the call says so."""
    body = """
    thread = threading.Thread(target=lambda: print(pipelines.flush_at_sigterm(5), flush=True))
    thread.start()
    thread.join()
    print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    """
    assert run(body, tmp_path).stdout == "False\nTrue\n"
