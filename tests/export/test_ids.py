"""Ids that do not depend on the global random module, and are new in a forked child."""

from __future__ import annotations

import os
import random

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from inferspan.export.ids import RandomIds, adopt_ids, ids


def test_global_random_is_neither_read_nor_advanced() -> None:
    """Seeding gives no repeated id, and drawing ids leaves the global stream where it was."""
    generator = RandomIds()
    random.seed(42)
    first = generator.generate_trace_id(), generator.generate_span_id()
    following = random.random()
    random.seed(42)
    assert random.random() == following
    random.seed(42)
    assert (generator.generate_trace_id(), generator.generate_span_id()) != first


def test_ids_are_valid_and_random() -> None:
    """Ids have the full width, are never zero, do not repeat, and are declared random."""
    generator = ids()
    traces = [generator.generate_trace_id() for _ in range(2000)]
    spans = [generator.generate_span_id() for _ in range(2000)]
    assert len(set(traces)) == len(set(spans)) == 2000
    assert 0 < min(traces) and 2**127 < max(traces) < 2**128
    assert 0 < min(spans) and 2**63 < max(spans) < 2**64
    assert generator.is_trace_id_random()
    assert ids() is generator


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_child_of_fork_draws_other_ids() -> None:
    """Parent and child draw different ids after a fork."""
    generator = RandomIds()
    generator.generate_span_id()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, generator.generate_trace_id().to_bytes(16, "big"))
        os._exit(0)
    os.waitpid(child, 0)
    assert int.from_bytes(os.read(reading, 16), "big") != generator.generate_trace_id()
    os.close(reading)
    os.close(writing)


def test_adopt_ids_exchanges_only_our_tracers_generator() -> None:
    """On a provider with the SDK's default generator our tracer gets ours; the provider and its other tracers keep theirs."""
    provider = TracerProvider(shutdown_on_exit=False)
    tracer, other = provider.get_tracer("inferspan"), provider.get_tracer("host")
    assert adopt_ids(tracer)
    assert tracer.id_generator is ids()  # type: ignore[attr-defined]
    assert type(provider.id_generator) is RandomIdGenerator
    assert other.id_generator is provider.id_generator  # type: ignore[attr-defined]
    assert not adopt_ids(tracer)


def test_adopt_ids_leaves_a_chosen_generator_alone() -> None:
    """A generator that somebody chose, even a subclass of the SDK's, stays; so does a tracer that is not the SDK's."""

    class Chosen(RandomIdGenerator):
        pass

    tracer = TracerProvider(shutdown_on_exit=False, id_generator=Chosen()).get_tracer("inferspan")
    assert not adopt_ids(tracer)
    assert type(tracer.id_generator) is Chosen  # type: ignore[attr-defined]
    assert not adopt_ids(trace.NoOpTracer())
