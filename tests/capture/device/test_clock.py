"""Device times by events that nothing waits for, on a driver made of Python."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from inferspan.capture.device import clock as device_clock
from inferspan.capture.device import events as cuda_events
from inferspan.capture.device.clock import READ_AT, SHARE_DATA_NS, SHARE_NS, CallClock, DeviceClock, Measured, cuda_devices
from tests.capture.device.clocks import MODEL, Host, run_pass, start, times_of
from tests.capture.device.fake_cuda import FakeCuda


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
    call = start()
    measured = run_pass(call, host, events, cuda)
    assert cuda.calls["cuEventRecord"] == records
    call.read()
    assert times_of(measured) == times
    assert cuda.calls["cuEventQuery"] == cuda.calls["cuEventSynchronize"] == 0


def test_threshold(cuda: FakeCuda, host: Host) -> None:
    """Just below the threshold an event is shared, and at it not."""
    call = start()
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
    call = start()
    measured = _tensors(call, host, cuda, events)
    assert cuda.calls["cuEventRecord"] == records
    call.read()
    assert times_of(measured) == times


def test_a_tensor_that_was_there_long_ago(cuda: FakeCuda, host: Host) -> None:
    """After some time much may have been launched, so the boundary is recorded; and no tensor is kept alive."""
    call = start()
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
    call = start()
    passes = [run_pass(call, host, events, cuda) for events in ("< w1 >", "+0 w2 -0", "< w3 >")]
    call.read()
    assert [times_of(one) for one in passes] == [{None: 1}, {0: 2}, {None: 3}]
    assert cuda.calls["cuEventRecord"] == 6


def test_stream_is_asked_for_each_time(cuda: FakeCuda, host: Host) -> None:
    """The user may change streams between two boundaries; times the wrong way round between them are left out."""
    call = start()
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
    assert times_of(measured) == {None: 2}


def test_reading_waits_for_the_device(cuda: FakeCuda, host: Host) -> None:
    """What the device has not reached is asked for again later, oldest first, and its events are not used again before."""
    cuda.reached = [0.0]
    call = start()
    passes = [run_pass(call, host, f"< +0 w{number} -0 . >", cuda) for number in (1, 2, 3)]
    call.read()
    assert [times_of(one) for one in passes] == [{}, {}, {}] and cuda.calls["cuEventElapsedTime"] == 1
    cuda.reached = [3.0]
    call.read()
    assert [times_of(one) for one in passes] == [{None: 1, 0: 1}, {None: 2, 0: 2}, {}]
    passes.append(run_pass(call, host, "< w7 >", cuda))
    cuda.reached = None
    call.read()
    assert [times_of(one) for one in passes] == [{None: 1, 0: 1}, {None: 2, 0: 2}, {None: 3, 0: 3}, {None: 7}]


def test_what_is_given_up_stays_unknown(cuda: FakeCuda, host: Host) -> None:
    """At the end nothing waits for the device: what it has not reached has no time, and its events are free."""
    cuda.reached = [1.0]
    clock = DeviceClock()
    call = start(clock)
    passes = [run_pass(call, host, "< w1 >", cuda) for _ in range(3)]
    call.read(leave=0)
    assert [times_of(one) for one in passes] == [{None: 1}, {}, {}]
    call.close()
    clock.close()
    assert cuda.alive == 0


@pytest.mark.usefixtures("own_events")
def test_long_request_holds_few_events(cuda: FakeCuda) -> None:
    """100,000 steps need no more events than a thousand do, and each costs two records and one question."""
    clock = DeviceClock()
    call = start(clock)
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
    assert cuda.alive == 2 * READ_AT
    assert round(sum(one.seconds or 0 for one in passes)) == steps / 1000
    batches = -(-steps * 2 // READ_AT)
    assert cuda.calls["cuEventRecord"] == 2 * steps and cuda.calls["cuEventElapsedTime"] == steps
    assert cuda.calls["cuThreadExchangeStreamCaptureMode"] <= 2 * batches


@pytest.mark.usefixtures("own_events")
def test_device_that_is_never_done(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that runs ahead of the device without end keeps a bounded number of passes and events, and knows no times."""
    monkeypatch.setattr(cuda_events, "MOST_EVENTS", 300)
    cuda.reached = [-1.0]
    call = start()
    passes = []
    for _ in range(3 * device_clock.MOST_WAITING):
        call.read_some()
        call.begin()
        passes.append(call.end_pass())
    assert cuda.alive == 300 and not any(times_of(one) for one in passes)
    assert len(call._waiting) <= device_clock.MOST_WAITING + READ_AT
    cuda.reached = None
    call.read(leave=0)
    cuda.tick = 1.0
    assert call.end_pass() is None
    call.begin()
    measured = call.end_pass()
    call.read()
    assert times_of(measured) == {None: 1}


def test_other_threads_do_not_read(cuda: FakeCuda, host: Host) -> None:
    """Only the thread that has recorded asks for times, whoever ends the request."""
    call = start()
    measured = run_pass(call, host, "< w1 >", cuda)

    def end() -> None:
        call.read(leave=0)
        call.close()

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert times_of(measured) == {} and not cuda.readers
    call.read()
    assert times_of(measured) == {None: 1} and cuda.readers == {threading.get_ident()}


def test_captures_are_left_alone(cuda: FakeCuda, host: Host) -> None:
    """While the stream captures a graph nothing is recorded or asked; boundaries outside of it are measured."""
    cuda.current_stream[0] = stream = 0xFFFF_7000_0000
    call = start()
    earlier = run_pass(call, host, "< w1 >", cuda)
    call.begin()
    host.now += SHARE_NS
    cuda.capturing = {stream}
    call.enter(0)
    call.read()
    assert times_of(earlier) == {} and call.between(0, 0) is None
    host.now += SHARE_NS
    call.leave(0)
    cuda.capturing = set()
    cuda.work[0] += 4
    measured = run_pass(call, host, ". +1 w2 -1 . >", cuda)
    call.read()
    assert times_of(earlier) == {None: 1} and times_of(measured) == {None: 6, 1: 2}


def test_several_devices(two: FakeCuda, host: Host) -> None:
    """Each boundary stands on every device, in that device's context; the longest time counts, and events of two are never mixed."""
    clock = DeviceClock()
    call = start(clock)
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
    assert times_of(measured) == {None: 6.5, 0: 3, 1: 6}
    assert two.recorded == [(0, 0), (1, 0)] * 4
    two.current_stream[1] = 9
    two.capturing = {9}
    call.begin()
    two.capturing = set()
    two.work = [9.0, 9.0]
    broken = call.end_pass()
    call.read()
    assert times_of(broken) == {}
    call.close()
    clock.close()
    assert two.alive == 0


def test_events_go_back_to_the_driver(cuda: FakeCuda, host: Host) -> None:
    """With the instrumentation its events go, those of a running request when that ends."""
    clock = DeviceClock()
    call = start(clock)
    run_pass(call, host, "< w1 . >", cuda)
    clock.close()
    assert cuda.alive == 2 and clock.start(MODEL) is None
    call.close()
    assert cuda.alive == 0
    # A module call that is still under way has the clock in its hands.
    cuda.calls.clear()
    assert run_pass(call, host, ". -0 . > .", cuda) is None
    call.read()
    assert call.between(0, 0) is None and not cuda.calls


def test_forked_child(cuda: FakeCuda, host: Host) -> None:
    """In a forked child no event of the parent is touched, not even to destroy it."""
    clock = DeviceClock()
    run_pass(start(clock), host, "< w1 . >", cuda)
    cuda.calls.clear()
    clock.forked()
    clock.close()
    assert not cuda.calls


def test_only_where_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without CUDA, or before the program itself has begun to use it, there is no clock, and nothing is said about it."""
    if torch.cuda.is_initialized():
        pytest.skip("another test of this process uses CUDA already")
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


def test_an_error_about_one_model_is_not_one_of_the_device(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the devices of a model cannot be told once, the next request has a clock again."""
    clock = DeviceClock()
    with monkeypatch.context() as patch:
        patch.setattr(device_clock, "cuda_devices", lambda model: torch.device("nowhere"))
        with pytest.raises(RuntimeError):
            clock.start(MODEL)
    assert clock.start(MODEL) is not None


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
    call = start(clock)
    measured = run_pass(call, host, "< +0 w1 +1 w3 -1 w1 -0 >", cuda)
    cuda.reached = [4.0]
    call.read()
    assert times_of(measured) == {}
    cuda.reached = None
    call.read()
    assert times_of(measured) == {None: 5, 0: 5, 1: 3} and cuda.recorded == [(0, 7)] * 4
    cuda.capturing = {0}
    call.begin()
    cuda.capturing = set()
    host.now += SHARE_NS
    broken = call.end_pass()
    call.read()
    assert times_of(broken) == {} and len(cuda.recorded) == 5
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
