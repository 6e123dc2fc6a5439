"""Log events of a request, and captured messages as span attributes: what the GenAI conventions have beside the span itself.

In: how a request ended. Out: the event with its messages and parameters, the event of its exception, or the attributes that hold its
messages. ``messages`` decides which content is captured, and bounds it; nothing of it is reached without a setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry._logs import LogRecord, NoOpLogger, SeverityNumber

from inferspan import semconv
from inferspan.attribute_values import set_within_limits
from inferspan.messages import structured, to_json
from inferspan.records import AttributeValue, Failure, RequestEnd

__all__ = [
    "attention_events", "content_event", "exception_attributes", "exception_event", "inference_group", "position_events", "session_group",
    "set_content", "wants",
]  # fmt: skip

_GROUP = (semconv.ERROR_TYPE, "server.address", "server.port")
"""Attributes of the event outside the ``gen_ai`` namespace."""
_SESSION = "inferspan.session."

_maps_taken = True
"""Whether the SDK takes lists and mappings as attribute values; older ones drop them with a line in the log."""


def inference_group(attributes: Mapping[str, Any]) -> dict[str, AttributeValue]:
    """Those attributes of a request that belong to the inference in the conventions, without messages; of our own names the session's."""
    return {
        key: value
        for key, value in attributes.items()
        if (key.startswith(("gen_ai.", _SESSION)) or key in _GROUP)
        and not key.startswith("gen_ai.latency.")
        and key not in semconv.MESSAGES
    }


def session_group(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Those attributes of a request that say which session it is in."""
    return {key: value for key, value in attributes.items() if key.startswith(_SESSION)}


def _messages(end: RequestEnd, write: Any) -> dict[str, Any]:
    pairs = zip(semconv.MESSAGES, (end.input_messages, end.output_messages), strict=True)
    return {key: write(messages) for key, messages in pairs if messages}


def set_content(span: Any, end: RequestEnd, *, maps: bool) -> None:
    """Put the messages of a request on its span.

    Args:
        span: of the request.
        end: how it ended, with its messages.
        maps: as lists and mappings; an SDK that does not take them gets JSON texts all the same.
    """
    global _maps_taken
    if maps and _maps_taken:
        set_within_limits(span, _messages(end, structured))
        kept = getattr(span, "attributes", None)
        _maps_taken = not isinstance(kept, Mapping) or all(key in kept for key in _messages(end, len))
    if not maps or not _maps_taken:
        set_within_limits(span, _messages(end, to_json))


def content_event(logger: Any, attributes: Mapping[str, AttributeValue], end: RequestEnd, context: Any) -> None:
    """Emit ``gen_ai.client.inference.operation.details`` with the messages of a request, always as lists and mappings.

    Args:
        logger: an OpenTelemetry logger.
        attributes: of the request's span; those of the inference group are sent too.
        end: how the request ended, with its messages.
        context: context that holds the request's span.
    """
    logger.emit(
        LogRecord(
            timestamp=end.end_ns,
            context=context,
            severity_number=SeverityNumber.DEBUG,
            event_name=semconv.CONTENT_EVENT,
            attributes={**inference_group(attributes), **_messages(end, structured)},
        )
    )


def position_events(logger: Any, passes: Sequence[Any], context: Any, request: Mapping[str, AttributeValue]) -> None:
    """Emit a record for each pass with the largest logits of its positions.

    Args:
        logger: an OpenTelemetry logger.
        passes: ``TopLogits`` of a request.
        context: context that holds the request's span.
        request: attributes of the request; those of its session are sent too.
    """
    for one in passes:
        kept = one.positions
        attributes: dict[str, Any] = {
            semconv.POSITION_SHAPE: "x".join(map(str, one.shape)),
            semconv.POSITION_ROWS: [position.row for position in kept],
            semconv.POSITION_PLACES: [position.position for position in kept],
            semconv.POSITION_IDS: [token for position in kept for token in position.ids],
            semconv.POSITION_VALUES: [value for position in kept for value in position.logits],
            semconv.POSITIONS_OMITTED: one.left_out,
            **session_group(request),
        }
        if one.step is not None:
            attributes[semconv.STEP_INDEX] = one.step
        if kept and kept[0].texts is not None:
            attributes[semconv.POSITION_TEXTS] = [text for position in kept for text in position.texts]
        logger.emit(
            LogRecord(
                timestamp=one.time_ns, context=context, severity_number=SeverityNumber.DEBUG, event_name=semconv.POSITIONS_EVENT,
                attributes=attributes,
            )
        )  # fmt: skip


def attention_events(logger: Any, end: RequestEnd, context: Any, request: Mapping[str, AttributeValue]) -> None:
    """Emit ``inferspan.attention.map`` for each call of a layer whose weights were kept.

    Args:
        logger: an OpenTelemetry logger.
        end: how the request ended.
        context: context that holds the request's span.
        request: attributes of the request; those of its session are sent too.
    """
    if end.attention_maps is None or not wants(logger, context, semconv.ATTENTION_MAP_EVENT, SeverityNumber.DEBUG):
        return
    for found in end.attention_maps():
        _attention_event(logger, found, context, request)


def _attention_event(logger: Any, found: Any, context: Any, request: Mapping[str, AttributeValue]) -> None:
    attributes: dict[str, AttributeValue] = {
        semconv.MODULE_NAME: found.module,
        semconv.ATTENTION_MAP_SHAPE: list(found.shape),
        semconv.ATTENTION_MAP_SHIFT: found.shift,
        semconv.ATTENTION_MAP_SCALE: found.scale,
        semconv.ATTENTION_MAP_DATA: found.data,
        **({} if found.step is None else {semconv.STEP_INDEX: found.step}),
        **({semconv.ATTENTION_CROSS: True} if found.cross else {}),
        **session_group(request),
    }
    logger.emit(
        LogRecord(
            timestamp=found.time_ns, context=context, severity_number=SeverityNumber.DEBUG, event_name=semconv.ATTENTION_MAP_EVENT,
            attributes=attributes,
        )
    )  # fmt: skip


def exception_attributes(failure: Failure) -> dict[str, str]:
    """An exception as attributes of an event, on a span or as a log record."""
    return {
        semconv.EXCEPTION_TYPE: failure.type,
        semconv.EXCEPTION_MESSAGE: failure.message,
        semconv.EXCEPTION_STACKTRACE: failure.stacktrace,
    }


def wants(
    logger: Any, context: Any, name: str = semconv.INFERENCE_EXCEPTION_EVENT, severity: SeverityNumber = SeverityNumber.WARN
) -> bool:
    """Whether log records of this name arrive anywhere: a provider has been set, and it is not switched off."""
    enabled = getattr(logger, "enabled", None)
    if enabled is None:  # before version 1.41 of the API
        # A proxy stands for the logger of a provider that is set later, and an SDK without processors drops every record.
        found = getattr(logger, "_logger", logger)
        processor = getattr(found, "_multi_log_record_processor", None)
        return not isinstance(found, NoOpLogger) and getattr(processor, "_log_record_processors", None) != ()
    return bool(enabled(context=context, severity_number=severity, event_name=name))


def exception_event(logger: Any, failure: Failure, time_ns: int, context: Any, request: Mapping[str, AttributeValue]) -> bool:
    """Emit ``gen_ai.client.inference.exception`` for a failed request.

    Args:
        logger: an OpenTelemetry logger.
        failure: the exception.
        time_ns: when the request ended.
        context: context that holds the request's span.
        request: attributes of the request; those of its session are sent too.

    Returns:
        Whether it was sent; not where no logger provider is set.
    """
    if not wants(logger, context):
        return False
    logger.emit(
        LogRecord(
            timestamp=time_ns,
            context=context,
            severity_number=SeverityNumber.WARN,
            event_name=semconv.INFERENCE_EXCEPTION_EVENT,
            attributes={**exception_attributes(failure), **session_group(request)},
        )
    )
    return True
