"""Samplers with an interval of their own: what is read when, and who gets it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from inferspan.records import Sample
from inferspan.samplers.beat import Beat
from inferspan.samplers.loop import SamplerLoop

LONG = 60.0


class Card:
    """A sampler with a cheap and a dear reading, each the number of its kind of round."""

    def __init__(self) -> None:
        self.whole = self.cheap = 0
        self.cards = 1
        self.enough = threading.Event()

    def collect(self) -> Sequence[Sample]:
        self.whole += 1
        return [Sample("power", 100 * self.whole, {"hw.id": f"{card}"}) for card in range(self.cards)] + [Sample("energy", self.whole, {})]

    def collect_cheap(self) -> Sequence[Sample]:
        self.cheap += 1
        if self.cheap >= 3:
            self.enough.set()
        return [Sample("power", 100 * self.whole + self.cheap, {"hw.id": f"{card}"}) for card in range(self.cards)]

    def close(self) -> None:
        pass


def values(samples: Sequence[Sample]) -> dict[str, float]:
    """Values by name and device."""
    return {f"{sample.metric} {sample.attributes.get('hw.id', '')}".strip(): sample.value for sample in samples}


def read(beat: Beat, now: float) -> None:
    """One round of a beat."""
    beat.publish(beat.collect(now))


def recent(beat: Beat, now: float) -> dict[str, float]:
    """The readings that a beat hands out."""
    return values([sample for reading in beat.recent(now) for sample in reading.samples])


class TestBeat:
    """One sampler."""

    def test_below_a_second_the_dear_readings_keep_the_common_interval(self) -> None:
        """Of 10 s at 0.1 s, two rounds are whole ones with a common interval of 5 s."""
        card = Card()
        beat = Beat("nvml", card, common=5.0, own=0.1)
        for tick in range(100):
            read(beat, 1000 + tick / 10)
        assert card.whole == 2
        assert card.cheap == 98

    def test_from_a_second_on_every_reading_is_whole(self) -> None:
        """At an interval of 1 s there is no cheap reading."""
        card = Card()
        beat = Beat("nvml", card, common=5.0, own=1.0)
        for tick in range(10):
            read(beat, 1000.0 + tick)
        assert (card.whole, card.cheap) == (10, 0)

    def test_the_newest_of_both_is_handed_out_once(self) -> None:
        """A cheap reading takes the place of its series in the whole one, whose other series stay."""
        beat = Beat("nvml", Card(), common=5.0, own=0.1)
        read(beat, 1000.0)
        read(beat, 1000.1)
        assert recent(beat, 1000.1) == {"power 0": 101, "energy": 1}

    def test_old_readings_are_not_handed_out(self) -> None:
        """Nothing is older than two of its intervals."""
        beat = Beat("nvml", Card(), common=5.0, own=0.1)
        read(beat, 1000.0)
        read(beat, 1000.1)
        assert recent(beat, 1003.0) == {"power 0": 100, "energy": 1}
        assert recent(beat, 1011.0) == {}

    def test_a_card_that_is_gone_is_looked_at_as_a_whole(self) -> None:
        """Fewer cheap readings than before ask for a whole round."""
        card = Card()
        card.cards = 2
        beat = Beat("nvml", card, common=5.0, own=0.1)
        read(beat, 1000.0)
        read(beat, 1000.1)
        card.cards = 1
        read(beat, 1000.2)
        read(beat, 1000.3)
        assert card.whole == 2
        assert recent(beat, 1000.3) == {"power 0": 200, "energy": 2}


@pytest.fixture
def start() -> Iterator[Callable[..., SamplerLoop]]:
    """Start a loop that is stopped at the end of the test."""
    loops: list[SamplerLoop] = []

    def begin(**options: object) -> SamplerLoop:
        loop = SamplerLoop(**options)  # type: ignore[arg-type]
        loops.append(loop)
        loop.start()
        return loop

    yield begin
    for loop in loops:
        loop.stop(LONG)


class TestLoop:
    """The thread."""

    def test_followers_get_every_reading_with_its_time(self, start: Callable[..., SamplerLoop]) -> None:
        """Each round of a sampler with its own interval arrives, at the time at which it was read."""
        card, got = Card(), list[tuple[int, Sequence[Sample]]]()
        loop = SamplerLoop({"nvml": card}, interval=60.0, own={"nvml": 0.1})
        loop.follow(lambda at, samples: got.append((at, samples)))
        before = time.time_ns()
        loop.start()
        arrived = card.enough.wait(LONG)
        loop.stop(LONG)
        assert arrived
        times = [at for at, _ in got]
        assert len(got) >= 3
        assert times == sorted(set(times))
        assert before <= times[0] <= time.time_ns()

    def test_the_common_interval_has_no_followers(self, start: Callable[..., SamplerLoop]) -> None:
        """Readings that metrics export at their own interval are not handed on."""
        got: list[int] = []
        loop = start(samplers={"host": Card()}, interval=60.0, wait=LONG)
        loop.follow(lambda at, samples: got.append(at))
        loop.read()
        assert got == []

    def test_a_reader_does_not_ask_ahead_of_the_beat(self, start: Callable[..., SamplerLoop]) -> None:
        """An exporter that collects often costs no reading of a sampler with its own interval."""
        card = Card()
        loop = start(samplers={"nvml": card}, interval=60.0, own={"nvml": 3000.0}, wait=LONG)
        deadline = time.monotonic() + LONG
        while not loop.newest() and time.monotonic() < deadline:
            time.sleep(0.002)
        for _ in range(5):
            assert values(loop.read()) == {"power 0": 100, "energy": 1}
        assert card.whole == 1

    def test_the_time_of_readings_is_added_up_by_sampler(self, start: Callable[..., SamplerLoop]) -> None:
        """What readings take is counted."""
        spent: dict[str, float] = {}
        start(samplers={"nvml": Card(), "host": Card()}, interval=60.0, spent=spent, wait=LONG).read()
        assert set(spent) == {"nvml", "host"}
        assert all(seconds > 0 for seconds in spent.values())
