"""Where telemetry goes: pipelines that the library sets up itself, files, and a provider that the program has made global."""

# ruff: noqa: D103 - the name of a scenario says what it is; a docstring is there where it does not
from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from opentelemetry import _logs, metrics, trace
from torch import nn

import inferspan
from benchmarks.scenarios import models
from benchmarks.scenarios.models import prompt, tokenizer
from benchmarks.scenarios.receivers import Received, grpc_receiver, http_receiver
from benchmarks.scenarios.registry import Table
from benchmarks.scenarios.run import Run, exactly

scenario = Table("delivery")


def _fail(*_: Any) -> None:
    raise ValueError("layer failed")


def _traffic(run: Run, **settings: Any) -> None:
    """A request with content, one that fails, and a plain forward."""
    model = run.watch_globally(models.llama(), tokenizer(), capture_content="SPAN_AND_EVENT", modules="all", **settings)
    run.generate(model, prompt(2), **exactly(3))
    hook = model.model.layers[1].register_forward_hook(_fail)
    run.generate(model, prompt(), raises=ValueError, **exactly(3))
    hook.remove()
    run.forward(run.watch_globally(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), torch.ones(2, 4))


def _sent(run: Run, receiver: Callable[[], AbstractContextManager[Received]], protocol: str, **variables: str) -> None:
    """Traffic that our own pipeline sends to a receiver."""
    received = run.exits.enter_context(receiver())
    quiet = {"OTEL_METRIC_EXPORT_INTERVAL": "3600000", "OTEL_SERVICE_NAME": "scenario"}
    run.exits.enter_context(
        run.variables(OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, **quiet, **variables)
    )
    _traffic(run)
    run.outcomes.append(inferspan.flush())
    run.received(received.messages)


@scenario.alone()
def sent_over_http(run: Run) -> None:
    _sent(run, http_receiver, "http/protobuf")


@scenario.alone()
def sent_over_grpc(run: Run) -> None:
    _sent(run, grpc_receiver, "grpc")


@scenario.alone(INFERSPAN_EXTENSION="0")
def sent_without_the_extension(run: Run) -> None:
    _sent(run, http_receiver, "http/protobuf")


@scenario.alone()
def sent_with_span_limits(run: Run) -> None:
    limits = {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "10", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "6"}
    _sent(run, http_receiver, "http/protobuf", OTEL_EXPORTER_OTLP_COMPRESSION="gzip", **limits)


@scenario.alone()
def session_file(run: Run) -> None:
    path = run.folder / "session.jsonl"
    _traffic(run, session_file=str(path))
    run.outcomes.append(inferspan.flush())
    run.received([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])


@scenario.alone()
def session_file_beside_a_receiver(run: Run) -> None:
    """What is sent is looked at; the file is compared by its signals."""
    path = run.folder / "session.jsonl"
    run.exits.enter_context(run.variables(INFERSPAN_SESSION_FILE=str(path)))
    _sent(run, http_receiver, "http/protobuf")
    run.outcomes.append(sorted({key for line in path.read_text(encoding="utf-8").splitlines() for key in json.loads(line)}))


@scenario.alone()
def configured_by_the_program(run: Run) -> None:
    received = run.exits.enter_context(http_receiver())
    run.exits.enter_context(run.variables(OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint, OTEL_METRIC_EXPORT_INTERVAL="3600000"))
    with run.variables(OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf"):
        inferspan.configure()
    _traffic(run)
    run.outcomes.append(inferspan.flush())
    run.received(received.messages)


@scenario.alone()
def global_providers_of_the_program(run: Run) -> None:
    trace.set_tracer_provider(run.tracer_provider)
    metrics.set_meter_provider(run.meter_provider)
    _logs.set_logger_provider(run.logger_provider)
    _traffic(run)


@scenario.alone()
def no_destination(run: Run) -> None:
    _traffic(run)
    run.outcomes.append(type(trace.get_tracer_provider()).__name__)


@scenario.alone(INFERSPAN_EXTENSION="0")
def without_the_extension(run: Run) -> None:
    run.generate(run.watch(models.llama(), modules="all", every_step=True), prompt(2), **exactly(3))


@scenario.alone()
def readings_of_the_host(run: Run) -> None:
    """Names of what the samplers read; a reading that needs a difference comes with the second round."""
    run.forward(run.watch(nn.Linear(4, 4), host=True, allocator=True, sampler_interval=1.0), torch.ones(1, 4))
    time.sleep(2.5)
