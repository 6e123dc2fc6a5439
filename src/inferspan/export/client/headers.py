"""Headers in ``OTEL_EXPORTER_OTLP_HEADERS`` that a protocol can send, apart from those that it cannot.

In comes the text of a variable, out come the text without the entries that would make every request fail, and the names of these. Entries
that are not ``name=value`` stay: the exporters leave them out by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote

__all__ = ["Sendable", "sendable"]

_NAME = re.compile(r"[!#-'*+.0-9A-Z^-z|~-]+")
_PLAIN_NAME = re.compile(r"[a-z][0-9a-z_.-]{0,60}")
_ENCODED = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
_HTTP_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
"""Latin-1, which is what HTTP libraries encode it in, without control characters, which end the header or are refused by receivers."""
_GRPC_NAME = re.compile(r"[0-9a-z_.-]+")
_GRPC_VALUE = re.compile(r"[\x20-\x7e]*")


class Sendable(NamedTuple):
    """The text with the entries that can be sent, and the names of the others."""

    text: str
    others: tuple[str, ...]


def sendable(text: str, protocols: Iterable[str]) -> Sendable:
    """What of a variable's text can be sent.

    Args:
        text: entries ``name=value``, separated by commas; values are URL-encoded or not.
        protocols: ``grpc``, ``http/protobuf``; an entry has to suit all of them.
    """
    protocols = tuple(protocols)
    kept, others = [], []
    for entry in text.split(","):
        name, value = _parsed(entry)
        if name is None or all(_suits(name, value, each) for each in protocols):
            kept.append(entry)
        else:
            # A key without a name would stand in its place.
            others.append(name if _PLAIN_NAME.fullmatch(name) else "an entry")
    return Sendable(",".join(kept), tuple(others))


def _parsed(entry: str) -> tuple[str | None, str]:
    """Name and value as the exporters read them; no name where they leave the entry out."""
    name, mark, value = (part.strip() for part in entry.partition("="))
    if not mark or not _NAME.fullmatch(name):
        return None, ""
    # With blanks in it the value is not encoded.
    return name.lower(), unquote(value).strip() if _ENCODED.fullmatch(value) else value


def _suits(name: str, value: str, protocol: str) -> bool:
    if protocol != "grpc":
        return _HTTP_VALUE.fullmatch(value) is not None
    # One that ends in -bin takes bytes, and a variable gives text.
    return _GRPC_NAME.fullmatch(name) is not None and not name.endswith("-bin") and _GRPC_VALUE.fullmatch(value) is not None
