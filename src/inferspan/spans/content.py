"""Captured messages as the event of the GenAI conventions: structured, on the request's span context.

Emitted only if content capture is enabled; ``inferspan.messages`` bounds the messages.
"""

from __future__ import annotations

import json
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber

from inferspan import semconv
from inferspan.messages import to_json
from inferspan.records import AttributeValue, RequestEnd, RequestStart

__all__ = ["content_event", "to_json"]


def content_event(logger: Any, start: RequestStart, end: RequestEnd, context: Any) -> None:
    """Emit ``gen_ai.client.inference.operation.details`` with the messages of a request.

    Args:
        logger: an OpenTelemetry logger.
        start: the start of the request.
        end: its end, with its messages.
        context: context that holds the request's span.
    """
    attributes: dict[str, Any] = {semconv.PROVIDER_NAME: start.model.provider}
    if start.operation is not None:
        attributes[semconv.OPERATION_NAME] = start.operation
    if start.model.name is not None:
        attributes[semconv.REQUEST_MODEL] = attributes[semconv.RESPONSE_MODEL] = start.model.name
    reasons: AttributeValue | None = end.attributes.get(semconv.FINISH_REASONS)
    counts = {semconv.FINISH_REASONS: reasons, semconv.INPUT_TOKENS: end.input_tokens, semconv.OUTPUT_TOKENS: end.output_tokens}
    attributes |= {key: value for key, value in counts.items() if value is not None}
    # The conventions demand structured values on events; they are bounded like the JSON on spans.
    if end.input_messages:
        attributes[semconv.INPUT_MESSAGES] = json.loads(to_json(end.input_messages))
    if end.output_messages:
        attributes[semconv.OUTPUT_MESSAGES] = json.loads(to_json(end.output_messages))
    logger.emit(
        LogRecord(
            timestamp=end.end_ns,
            context=context,
            severity_number=SeverityNumber.INFO,
            event_name=semconv.CONTENT_EVENT,
            attributes=attributes,
        )
    )
