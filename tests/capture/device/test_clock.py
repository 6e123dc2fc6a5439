"""Device times by events that nothing waits for, on a driver made of Python; and on a GPU what they have to agree with."""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from inferspan import guard, semconv
from inferspan.capture.device import clock as device_clock
from inferspan.capture.device import events as cuda_events
from inferspan.capture.device.clock import READ_AT, SHARE_DATA_NS, SHARE_NS, CallClock, DeviceClock, Measured, cuda_devices
from inferspan.capture.modules.recorder import IN_C
from inferspan.capture.target import Target
from inferspan.records import ModuleBatch, Phase, Step
from inferspan.settings import Settings
from tests.capture.device.fake_cuda import FakeCuda
from tests.capture.test_target import Recorder, Scope
from tests.cases import models

MODEL = nn.Linear(2, 2)


class Host:
    """The host's clock, set by hand."""

    now = 1_000_000

    def __call__(self) -> int:
        """Nanoseconds."""
        return self.now


@pytest.fixture(params=[pytest.param(False, id="functions"), pytest.param(True, id="addresses")])
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """One device, which every model is on; it must not have seen anything that it should not."""
    yield from _install(FakeCuda(pointers=request.param), monkeypatch)


@pytest.fixture(params=[pytest.param(False, id="functions"), pytest.param(True, id="addresses")])
def two(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Two devices, over which every model is spread."""
    yield from _install(FakeCuda(2, pointers=request.param), monkeypatch)


def _install(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    monkeypatch.setattr(device_clock, "torch_cuda", fake.torch_cuda)
    monkeypatch.setattr(device_clock, "load_driver", lambda devices: fake)
    monkeypatch.setattr(device_clock, "cuda_devices", lambda model: tuple(range(len(fake.work))))
    yield fake
    assert not fake.faults


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host clock that stands still."""
    clock = Host()
    monkeypatch.setattr(device_clock, "perf_counter_ns", clock)
    return clock


def _start(clock: DeviceClock | None = None) -> CallClock:
    call = (clock or DeviceClock()).start(MODEL)
    assert call is not None
    return call


def _pass(call: CallClock, host: Host, events: str, cuda: FakeCuda, device: int = 0) -> Any:
    """One pass: ``<`` begins and ``>`` ends it, ``+n`` and ``-n`` are module calls, ``wX`` works X ms, ``.`` lets the host's time pass."""
    actions: dict[str, Callable[[str], None]] = {
        "<": lambda _: call.begin(),
        ">": lambda _: call.end(),
        "+": lambda word: call.enter(int(word)),
        "-": lambda word: call.leave(int(word)),
    }
    for word in events.split():
        if word == ".":
            host.now += SHARE_NS
        elif word[0] == "w":
            cuda.work[device] += float(word[1:])
            host.now += SHARE_NS
        else:
            actions[word[0]](word[1:])
    return call.end_pass()


def _times(measured: Any) -> dict[int | None, float]:
    """Milliseconds of the pass, under ``None``, and of its module calls."""
    found = dict(measured.modules) | ({None: measured.seconds} if measured.seconds is not None else {})
    return {number: round(value * 1e3, 4) for number, value in found.items()}


@pytest.mark.parametrize(
    ("events", "times", "records"),
    [
        pytest.param("< w5 >", {None: 5}, 2, id="pass"),
        pytest.param("< . +0 . +1 w3 -1 . -0 . >", {None: 3, 0: 3, 1: 3}, 6, id="nested, nothing shared"),
        pytest.param("< +0 +1 w3 -1 -0 >", {None: 3, 0: 3, 1: 3}, 2, id="nested, all shared"),
        pytest.param("< +0 w1 +1 w3 -1 w1 -0 >", {None: 5, 0: 5, 1: 3}, 4, id="work around a child"),
        pytest.param("< +0 w2 -0 +1 w4 -1 w1 >", {None: 7, 0: 2, 1: 4}, 4, id="neighbours share"),
        pytest.param("< +0 -0 w2 >", {None: 2, 0: 0}, 2, id="nothing in it"),
        pytest.param("+0 w2 +1 w1 -1 -0", {0: 3, 1: 1}, 3, id="modules before the first step"),
        pytest.param("< +0 w2 +1 w1 >", {None: 3}, 3, id="calls that an exception has left open"),
        pytest.param("< w2 > w9 >", {None: 2}, 2, id="only the first end counts"),
    ],
)
def test_times_and_shared_events(cuda: FakeCuda, host: Host, events: str, times: dict[int | None, float], records: int) -> None:
    """A time is the device's between the boundaries; boundaries with no host time for a launch between them share one event."""
    call = _start()
    measured = _pass(call, host, events, cuda)
    assert cuda.calls["cuEventRecord"] == records
    call.read()
    assert _times(measured) == times
    assert cuda.calls["cuEventQuery"] == cuda.calls["cuEventSynchronize"] == 0


def test_threshold(cuda: FakeCuda, host: Host) -> None:
    """Just below the threshold an event is shared, and at it not."""
    call = _start()
    call.begin()
    host.now += SHARE_NS - 1
    call.enter(0)
    assert cuda.calls["cuEventRecord"] == 1
    host.now += 1
    call.leave(0)
    assert cuda.calls["cuEventRecord"] == 2


def _tensors(call: CallClock, host: Host, cuda: FakeCuda, events: str) -> Any:
    """One pass in which time passes before each event: ``+n:x`` is module call n that takes tensor x, ``-n:y`` gives y, ``w`` works 1 ms."""
    tensors: dict[str, torch.Tensor] = {}
    call.begin()
    for word in events.split():
        host.now += SHARE_NS
        if word == "w":
            cuda.work[0] += 1
            continue
        number, name = word[1:].split(":")
        (call.enter if word[0] == "+" else call.leave)(int(number), tensors.setdefault(name, torch.zeros(1)))
    host.now += SHARE_NS
    return call.end_pass()


@pytest.mark.parametrize(
    ("events", "times", "records"),
    [
        pytest.param("+0:x +1:x w -1:y -0:y", {None: 1, 0: 1, 1: 1}, 4, id="a child takes and gives what its parent does"),
        pytest.param("+0:x w -0:y +1:y w -1:z", {None: 2, 0: 1, 1: 1}, 5, id="one takes what the last one gave"),
        pytest.param("+0:x +1:x w -1:a +2:x w -2:b -0:c", {None: 2, 0: 2, 1: 1, 2: 1}, 6, id="two children take what their parent took"),
        pytest.param("+0:x w -0:x", {None: 1, 0: 1}, 4, id="changed in place"),
        pytest.param("+0:x +1:x w -1:x -0:x", {None: 1, 0: 1, 1: 1}, 4, id="a child changes in place what its parent takes and gives"),
        pytest.param("+0:x w -0:y w +1:z w -1:u", {None: 3, 0: 1, 1: 1}, 6, id="something else was made in between"),
        pytest.param("+0:x +1:x w -1:y w -0:z", {None: 2, 0: 2, 1: 1}, 5, id="a parent gives something of its own"),
    ],
)
def test_a_tensor_that_was_there(cuda: FakeCuda, host: Host, events: str, times: dict[int | None, float], records: int) -> None:
    """Boundaries between which one tensor is passed on share an event, whatever a slow host does there; nothing else does."""
    call = _start()
    measured = _tensors(call, host, cuda, events)
    assert cuda.calls["cuEventRecord"] == records
    call.read()
    assert _times(measured) == times


def test_a_tensor_that_was_there_long_ago(cuda: FakeCuda, host: Host) -> None:
    """After some time much may have been launched, so the boundary is recorded; and no tensor is kept alive."""
    call = _start()
    call.begin()
    x = torch.zeros(1)
    host.now += SHARE_NS
    call.enter(0, x)
    host.now += SHARE_DATA_NS
    call.enter(1, x)
    assert cuda.calls["cuEventRecord"] == 3
    gone = weakref.ref(x)
    del x
    assert gone() is None


def test_passes_share_nothing(cuda: FakeCuda, host: Host) -> None:
    """A pass that follows at once has boundaries of its own."""
    call = _start()
    passes = [_pass(call, host, events, cuda) for events in ("< w1 >", "+0 w2 -0", "< w3 >")]
    call.read()
    assert [_times(one) for one in passes] == [{None: 1}, {0: 2}, {None: 3}]
    assert cuda.calls["cuEventRecord"] == 6


def test_stream_is_asked_for_each_time(cuda: FakeCuda, host: Host) -> None:
    """The user may change streams between two boundaries; times the wrong way round between them are left out."""
    call = _start()
    call.begin()
    cuda.current_stream[0] = 0xFFFF_7000_0000
    host.now += SHARE_NS
    call.enter(0)
    cuda.current_stream[0] = 5
    cuda.work[0] -= 2
    host.now += SHARE_NS
    call.leave(0)
    cuda.work[0] += 4
    host.now += SHARE_NS
    measured = call.end_pass()
    call.read()
    assert cuda.recorded == [(0, 0), (0, 0xFFFF_7000_0000), (0, 5), (0, 5)]
    assert _times(measured) == {None: 2}


def test_reading_waits_for_the_device(cuda: FakeCuda, host: Host) -> None:
    """What the device has not reached is asked for again later, oldest first, and its events are not used again before."""
    cuda.reached = [0.0]
    call = _start()
    passes = [_pass(call, host, f"< +0 w{number} -0 . >", cuda) for number in (1, 2, 3)]
    call.read()
    assert [_times(one) for one in passes] == [{}, {}, {}] and cuda.calls["cuEventElapsedTime"] == 1
    cuda.reached = [3.0]
    call.read()
    assert [_times(one) for one in passes] == [{None: 1, 0: 1}, {None: 2, 0: 2}, {}]
    passes.append(_pass(call, host, "< w7 >", cuda))
    cuda.reached = None
    call.read()
    assert [_times(one) for one in passes] == [{None: 1, 0: 1}, {None: 2, 0: 2}, {None: 3, 0: 3}, {None: 7}]


def test_what_is_given_up_stays_unknown(cuda: FakeCuda, host: Host) -> None:
    """At the end nothing waits for the device: what it has not reached has no time, and its events are free."""
    cuda.reached = [1.0]
    clock = DeviceClock()
    call = _start(clock)
    passes = [_pass(call, host, "< w1 >", cuda) for _ in range(3)]
    call.read(leave=0)
    assert [_times(one) for one in passes] == [{None: 1}, {}, {}]
    call.close()
    clock.close()
    assert cuda.alive == 0


def test_long_request_holds_few_events(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 steps need no more events than a hundred, and each costs two records and one question."""
    monkeypatch.setattr(device_clock, "SHARE_NS", 0)
    monkeypatch.setattr(device_clock, "SHARE_DATA_NS", 0)
    clock = DeviceClock()
    call = _start(clock)
    cuda.tick = 1.0
    steps = 100_000
    passes: list[Measured] = []
    for _ in range(steps):
        call.read_some()
        call.begin()
        call.end()
        measured = call.end_pass()
        assert measured is not None
        passes.append(measured)
    call.read(leave=0)
    assert cuda.alive == cuda_events.FIRST_EVENTS
    assert round(sum(one.seconds or 0 for one in passes)) == steps / 1000
    batches = -(-steps * 2 // READ_AT)
    assert cuda.calls["cuEventRecord"] == 2 * steps and cuda.calls["cuEventElapsedTime"] == steps
    assert cuda.calls["cuThreadExchangeStreamCaptureMode"] <= 2 * batches


def test_device_that_is_never_done(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that runs ahead of the device without end keeps a bounded number of passes and events, and knows no times."""
    monkeypatch.setattr(cuda_events, "MOST_EVENTS", 300)
    monkeypatch.setattr(device_clock, "SHARE_NS", 0)
    monkeypatch.setattr(device_clock, "SHARE_DATA_NS", 0)
    cuda.reached = [-1.0]
    call = _start()
    passes = []
    for _ in range(3 * device_clock.MOST_WAITING):
        call.read_some()
        call.begin()
        passes.append(call.end_pass())
    assert cuda.alive == 300 and not any(_times(one) for one in passes)
    assert len(call._waiting) <= device_clock.MOST_WAITING + READ_AT
    cuda.reached = None
    call.read(leave=0)
    cuda.tick = 1.0
    assert call.end_pass() is None
    call.begin()
    measured = call.end_pass()
    call.read()
    assert _times(measured) == {None: 1}


def test_other_threads_do_not_read(cuda: FakeCuda, host: Host) -> None:
    """Only the thread that has recorded asks for times, whoever ends the request."""
    call = _start()
    measured = _pass(call, host, "< w1 >", cuda)

    def end() -> None:
        call.read(leave=0)
        call.close()

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert _times(measured) == {} and not cuda.readers
    call.read()
    assert _times(measured) == {None: 1} and cuda.readers == {threading.get_ident()}


def test_captures_are_left_alone(cuda: FakeCuda, host: Host) -> None:
    """While the stream captures a graph nothing is recorded or asked; boundaries outside of it are measured."""
    cuda.current_stream[0] = stream = 0xFFFF_7000_0000
    call = _start()
    earlier = _pass(call, host, "< w1 >", cuda)
    call.begin()
    host.now += SHARE_NS
    cuda.capturing = {stream}
    call.enter(0)
    call.read()
    assert _times(earlier) == {} and call.between(0, 0) is None
    host.now += SHARE_NS
    call.leave(0)
    cuda.capturing = set()
    cuda.work[0] += 4
    measured = _pass(call, host, ". +1 w2 -1 . >", cuda)
    call.read()
    assert _times(earlier) == {None: 1} and _times(measured) == {None: 6, 1: 2}


def test_several_devices(two: FakeCuda, host: Host) -> None:
    """Each boundary stands on every device, in that device's context; the longest time counts, and events of two are never mixed."""
    clock = DeviceClock()
    call = _start(clock)
    call.begin()
    host.now += SHARE_NS
    call.enter(0)
    two.work = [3.0, 0.5]
    host.now += SHARE_NS
    call.leave(0)
    call.enter(1)
    two.work = [3.5, 6.5]
    host.now += SHARE_NS
    call.leave(1)
    measured = call.end_pass()
    call.read()
    assert _times(measured) == {None: 6.5, 0: 3, 1: 6}
    assert two.recorded == [(0, 0), (1, 0)] * 4
    two.current_stream[1] = 9
    two.capturing = {9}
    call.begin()
    two.capturing = set()
    two.work = [9.0, 9.0]
    broken = call.end_pass()
    call.read()
    assert _times(broken) == {}
    call.close()
    clock.close()
    assert two.alive == 0


def test_events_go_back_to_the_driver(cuda: FakeCuda, host: Host) -> None:
    """With the instrumentation its events go, those of a running request when that ends."""
    clock = DeviceClock()
    call = _start(clock)
    _pass(call, host, "< w1 . >", cuda)
    clock.close()
    assert cuda.alive == 2 and clock.start(MODEL) is None
    call.close()
    assert cuda.alive == 0
    # A module call that is still under way has the clock in its hands.
    cuda.calls.clear()
    assert _pass(call, host, ". -0 . > .", cuda) is None
    call.read()
    assert call.between(0, 0) is None and not cuda.calls


def test_forked_child(cuda: FakeCuda, host: Host) -> None:
    """In a forked child no event of the parent is touched, not even to destroy it."""
    clock = DeviceClock()
    _pass(_start(clock), host, "< w1 . >", cuda)
    cuda.calls.clear()
    clock.forked()
    clock.close()
    assert not cuda.calls


def test_only_where_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without CUDA, or before the program itself has begun to use it, there is no clock, and nothing is said about it."""
    monkeypatch.setattr(device_clock, "cuda_devices", lambda model: (0,))
    assert DeviceClock().start(MODEL) is None and not torch.cuda.is_initialized() and not caplog.records


def test_device_without_a_context(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that the program has not used is not initialised for the sake of a time; too many devices have none either."""
    for devices in ((0, 1), (), tuple(range(9))):
        monkeypatch.setattr(device_clock, "cuda_devices", lambda model, devices=devices: devices)
        assert DeviceClock().start(MODEL) is None
    assert not cuda.calls


def test_said_once(cuda: FakeCuda, caplog: pytest.LogCaptureFixture) -> None:
    """A driver that gives no events is reported once for a model; its requests have the host's times."""
    cuda.status["cuEventCreate"] = 2
    clock = DeviceClock()
    with caplog.at_level(logging.WARNING, "inferspan"):
        assert [clock.start(MODEL) for _ in range(3)] == [None] * 3
    assert [record.getMessage() for record in caplog.records] == ["device times cannot be measured (DriverError); times are the host's"]


class TorchEvent:
    """``torch.cuda.Event`` on the device of a test."""

    cuda: FakeCuda
    at = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: int) -> None:
        """Note the time."""
        self.at = self.cuda.work[0]
        self.cuda.recorded.append((0, stream))

    def query(self) -> bool:
        """Whether the device has come so far."""
        return self.cuda.reached is None or self.at <= self.cuda.reached[0]

    def elapsed_time(self, other: TorchEvent) -> float:
        """Milliseconds."""
        assert self.query() and other.query()
        return other.at - self.at


def test_events_of_torch(cuda: FakeCuda, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver's library cannot be used, events of torch give the same times, on the current stream and outside of captures."""
    TorchEvent.cuda = cuda
    monkeypatch.setattr(device_clock, "load_driver", lambda devices: None)
    monkeypatch.setattr(torch.cuda, "Event", TorchEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: 7 + index)
    clock = DeviceClock()
    call = _start(clock)
    measured = _pass(call, host, "< +0 w1 +1 w3 -1 w1 -0 >", cuda)
    cuda.reached = [4.0]
    call.read()
    assert _times(measured) == {}
    cuda.reached = None
    call.read()
    assert _times(measured) == {None: 5, 0: 5, 1: 3} and cuda.recorded == [(0, 7)] * 4
    cuda.capturing = {0}
    call.begin()
    cuda.capturing = set()
    host.now += SHARE_NS
    broken = call.end_pass()
    call.read()
    assert _times(broken) == {} and len(cuda.recorded) == 5
    call.close()
    clock.close()
    assert set(cuda.calls) == set()


class Placed:
    """A model as far as its devices matter."""

    def __init__(self, device: str, spread: dict[str, Any] | None = None) -> None:
        self.device = torch.device(device)
        if spread is not None:
            self.hf_device_map = spread

    def parameters(self) -> Iterator[Placed]:
        """One."""
        yield self


@pytest.mark.parametrize(
    ("model", "devices"),
    [
        (MODEL, ()),
        (nn.Identity(), ()),
        (Placed("cuda:1"), (1,)),
        (Placed("mps"), ()),
        (Placed("xpu:0"), ()),
        (Placed("cuda:0", {"": 0}), (0,)),
        (Placed("cuda:0", {"a": 1, "b": "cuda:0", "c": torch.device("cuda", 3), "d": "cpu", "e": "disk"}), (0, 1, 3)),
    ],
)
def test_devices_of_a_model(model: Any, devices: tuple[int, ...]) -> None:
    """CUDA devices that the model was spread over, else that of its first parameter; none for anything else."""
    assert cuda_devices(model) == devices


# ------------------------------------------------------------------------------------------------------- whole requests
def _target(model: Any, **settings: Any) -> tuple[Target, Recorder]:
    recorder = Recorder()
    return Target(model, Settings(nvml=False, host=False, allocator=False, **settings), recorder), recorder


def _generate(model: Any, tokens: int = 3) -> Any:
    with torch.no_grad():
        return model.generate(models.prompt(), do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens)


def _device_times(scope: Any) -> dict[Any, Any]:
    """Milliseconds by step number, phase, module (step, path) and ``None`` for the request."""
    found: dict[Any, Any] = {None: scope.ended[0].attributes.get(semconv.DEVICE_TIME)}
    for record in scope.records:
        if isinstance(record, ModuleBatch):
            paths = {record.calls[place]: record.calls[place + 2].name for place in range(0, len(record.calls), 9)}
            found |= {(record.step, paths[number]): seconds for number, seconds in record.device.items()}
            assert len(record.device) in (0, len(paths))
        elif isinstance(record, Step):
            attributes = record.attributes() if callable(record.attributes) else record.attributes
            found[record.number] = attributes.get(semconv.DEVICE_TIME)
        elif isinstance(record, Phase):
            found[record.name] = record.attributes.get(semconv.DEVICE_TIME)
    return {key: None if value is None else round(value * 1e3, 3) for key, value in found.items()}


def test_generate(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Request, phases, steps and modules of a ``generate()`` have the device's times; the outputs are those without us."""
    monkeypatch.setattr(device_clock, "SHARE_NS", 0)
    monkeypatch.setattr(device_clock, "SHARE_DATA_NS", 0)
    cuda.tick = 1.0
    model = models.llama()
    expected = _generate(model)
    target, recorder = _target(model, modules=["model.layers.[01]"], every_step=True)
    assert torch.equal(_generate(model), expected)
    (scope,) = recorder.scopes
    step = {0: 5, 1: 5, 2: 5}
    modules: dict[Any, float] = {(number, f"model.layers.{layer}"): 1 for number in range(3) for layer in range(2)}
    # Six boundaries a step, one where the first token is known, one at the end.
    assert _device_times(scope) == {None: 19, "prefill": 6, "decode": 13, **step, **modules}
    assert cuda.calls["cuEventRecord"] == 20
    assert cuda.calls["cuEventElapsedTime"] == 3 * 3 + 3
    target.close()
    assert cuda.alive == 0


def test_calls_of_the_driver_for_a_step(cuda: FakeCuda) -> None:
    """A step without modules costs two records and one question, however long the request; thinned steps cost nothing."""
    model = models.llama()
    target, recorder = _target(model, modules="none", max_spans_per_trace=20)
    counts = []
    for tokens in (6, 12, 40):
        cuda.calls.clear()
        _generate(model, tokens)
        steps = sum(isinstance(record, Step) for record in recorder.scopes[-1].records)
        assert cuda.calls["cuEventRecord"] == 2 * steps + 2 and cuda.calls["cuEventElapsedTime"] == steps + 3
        counts.append(steps)
    assert counts[:2] == [6, 12] and 15 < counts[2] <= 17
    target.close()
    target, recorder = _target(model, steps="none")
    cuda.calls.clear()
    _generate(model)
    # What is left: where the first pass begins and ends, the first token, the end; the request and its phases.
    assert (cuda.calls["cuEventRecord"], cuda.calls["cuEventElapsedTime"]) == (4, 3)
    assert set(_device_times(recorder.scopes[0])) == {None, "prefill", "decode"}
    target.close()


def test_long_generate(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are handed over while the request runs have their times by then."""
    monkeypatch.setattr("inferspan.capture.generate.call.LIVE", 8)
    handed: list[tuple[int, Any]] = []

    def detail(scope: object, records: Any) -> None:
        for record in records:
            if isinstance(record, Step):
                attributes = record.attributes() if callable(record.attributes) else record.attributes
                handed.append((record.number, attributes.get(semconv.DEVICE_TIME)))

    monkeypatch.setattr(Scope, "detail", detail)
    cuda.tick = 1.0
    model = models.llama()
    target, _ = _target(model, modules="none")
    _generate(model, 20)
    assert handed == [(number, pytest.approx(1e-3)) for number in range(20)]
    target.close()


def test_encoder_and_decoder(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder, which runs before the first step, is inside the prefill and the request."""
    monkeypatch.setattr(device_clock, "SHARE_NS", 0)
    monkeypatch.setattr(device_clock, "SHARE_DATA_NS", 0)
    cuda.tick = 1.0
    model = models.t5()
    target, recorder = _target(model, modules=["encoder.block.[01]", "decoder.block.[01]"])
    _generate(model, 1)
    times = _device_times(recorder.scopes[0])
    modules: dict[Any, float] = {(None, f"encoder.block.{n}"): 1 for n in range(2)} | {(0, f"decoder.block.{n}"): 1 for n in range(2)}
    assert times == {None: 11, "prefill": 10, 0: 5, **modules}
    target.close()


def test_forward(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain forward has the device's time on its span and its modules if the device is done when the call has been described."""
    monkeypatch.setattr(device_clock, "SHARE_NS", 0)
    monkeypatch.setattr(device_clock, "SHARE_DATA_NS", 0)
    cuda.tick = 1.0
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    target, recorder = _target(model)
    model(torch.ones(1, 2))
    assert _device_times(recorder.scopes[0]) == {None: 5, (None, "0"): 1, (None, "1"): 1}
    cuda.reached = [0.0]
    model(torch.ones(1, 2))
    assert _device_times(recorder.scopes[1]) == {None: None}
    target.close()
    assert cuda.alive == 0


def test_forward_that_fails(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Module calls that an exception ended have no device time; those that returned have theirs."""
    monkeypatch.setattr(device_clock, "SHARE_NS", 0)
    monkeypatch.setattr(device_clock, "SHARE_DATA_NS", 0)
    cuda.tick = 1.0
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3))
    target, recorder = _target(model)
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 2))
    (batch,) = (record for record in recorder.scopes[0].records if isinstance(record, ModuleBatch))
    assert dict(batch.device) == {0: pytest.approx(1e-3)}
    target.close()
    assert cuda.alive == 0


class Blocking(nn.Module):
    """Waits in the middle of its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)
        self.inside, self.go = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers, and a pause between them."""
        x = self.one(x)
        self.inside.set()
        assert self.go.wait(10)
        return self.other(x)


def test_forward_that_another_thread_detaches(cuda: FakeCuda) -> None:
    """A pass during which another thread calls ``uninstrument()`` goes on by itself: only its own thread asks the device."""
    model = Blocking()
    target, recorder = _target(model)
    thread = threading.Thread(target=lambda: model(torch.ones(1, 2)))
    thread.start()
    own = {thread.ident}
    assert model.inside.wait(10)
    target.close()
    assert recorder.scopes[0].ended == []
    model.go.set()
    thread.join()
    assert len(recorder.scopes[0].ended) == 1
    assert cuda.recorders == own
    assert cuda.readers <= own


def test_switched_off(cuda: FakeCuda) -> None:
    """With ``device_time`` off the driver is not called at all, and nobody is told a time."""
    model = models.llama()
    target, recorder = _target(model, device_time=False)
    _generate(model)
    target.close()
    assert not cuda.calls and not any(_device_times(recorder.scopes[0]).values())


@pytest.mark.parametrize(
    "name",
    [
        "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuEventCreate", "cuEventRecord", "cuEventElapsedTime", "cuEventDestroy_v2",
        "cuThreadExchangeStreamCaptureMode",
    ],
)  # fmt: skip
def test_driver_that_refuses(cuda: FakeCuda, name: str, contained: list[guard.Swallowed], caplog: pytest.LogCaptureFixture) -> None:
    """Whichever call the driver refuses, the model's outputs and the rest of the telemetry are the same; the failure is said once."""
    model = models.llama()
    expected = _generate(model, 6)
    target, recorder = _target(model)
    cuda.status[name] = 700
    with caplog.at_level(logging.WARNING, "inferspan"):
        assert torch.equal(_generate(model, 6), expected)
        target.close()
    assert len([record for record in recorder.scopes[0].records if isinstance(record, Step)]) == 6
    times = _device_times(recorder.scopes[0])
    assert not any(value for key, value in times.items()) or name == "cuEventDestroy_v2"
    assert {error.place for error in contained} <= {"device clock"}
    assert len(caplog.records) <= 1
    if name == "cuEventRecord":
        # What C code is refused, Python code tries again and tells of.
        tries = 2 if IN_C and cuda.pointers else 1
        assert cuda.calls[name] == cuda_events.FAILURES * tries
    if name in ("cuEventRecord", "cuEventElapsedTime"):
        assert cuda.alive == 0
    contained.clear()


def test_forked_request(cuda: FakeCuda) -> None:
    """A request that a fork has copied into the child goes on there without its clock."""
    model = models.llama()
    target, recorder = _target(model)
    mlp = model.model.layers[0].mlp
    before = mlp.forward

    def forking(x: torch.Tensor) -> torch.Tensor:
        target.forked()
        cuda.calls.clear()
        return before(x)

    mlp.forward = forking
    _generate(model)
    del mlp.forward
    assert not cuda.calls and len(recorder.scopes) == 1
    target.close()
    assert not cuda.calls


# ------------------------------------------------------------------------------------------------------------ on a GPU
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize")


def _on_device(model: Any, tokens: int) -> None:
    with torch.no_grad():
        model.generate(models.prompt().cuda(), do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens)


def _profiled(run: Callable[[], object]) -> tuple[float, Counter[str]]:
    """Seconds of kernels, and how often the host has waited by which call."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        run()
        torch.cuda.synchronize()
    events: list[Any] = list(profile.events() or ())
    kernels = sum(event.time_range.elapsed_us() for event in events if str(event.device_type).endswith("CUDA"))
    return kernels * 1e-6, Counter(event.name for event in events if event.name in WAITS)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")
def test_agrees_with_the_profiler() -> None:
    """On device-bound work the times of a pass and of its modules are the kernels', within 2 %."""
    layers = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda()
    x = torch.randn(8192, 4096, device="cuda")

    def run(call: CallClock | None) -> Any:
        y = x
        if call is not None:
            call.begin()
        for number, layer in enumerate(layers):
            if call is not None:
                call.enter(number)
            y = layer(y)
            if call is not None:
                call.leave(number)
        return call.end_pass() if call is not None else None

    with torch.no_grad():
        run(None)
        kernels = min(_profiled(lambda: run(None))[0] for _ in range(3))
        call = DeviceClock().start(layers)
        assert call is not None
        measured = [run(call) for _ in range(5)]
        torch.cuda.synchronize()
        call.read(leave=0)
    assert min(one.seconds for one in measured) == pytest.approx(kernels, rel=0.02)
    assert min(sum(one.modules.values()) for one in measured) == pytest.approx(kernels, rel=0.02)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature", "ignore:Warning. Profiler clears events")
def test_nothing_waits_for_the_device() -> None:
    """The host waits for the device as often with device times as without: by torch's own account, and by the calls in a profile."""
    model = models.llama().cuda()
    counts = []
    for device_time in (False, True):
        target, _ = _target(model, device_time=device_time, logits=False, modules="all", every_step=True)
        _on_device(model, 8)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                _on_device(model, 8)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits = _profiled(lambda: _on_device(model, 8))[1]
        counts.append((len([warning for warning in seen if "synchronizing" in str(warning.message)]), waits))
        target.close()
    assert counts[0] == counts[1] and counts[0][0] > 0
