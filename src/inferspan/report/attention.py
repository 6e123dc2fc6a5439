"""A request and the attention weights in its file -> what its tokens attended to, layer by layer.

In comes a ``Request`` with the records of weights that belong to it; out come plain values for the page. Whole weights come from records of
``attention_maps``; without those, each layer has the 5 keys that its span names. Layers that attend to another sequence are left out:
their keys are not tokens of this one.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferspan import semconv
from inferspan.report.otlp_lines import Value
from inferspan.report.plain import plain, rounded
from inferspan.report.spans import Request, Span
from inferspan.report.tokens import TokenTable

__all__ = ["Attended", "attention_of", "for_page", "name_attended"]

LARGEST = 1 << 20
"""Weights of one record."""
MOST_WEIGHTS = 1 << 23
"""Of a request."""
MOST_POSITION = 1 << 31
MOST_KEYS = 16
"""Keys of a layer that are shown for a query."""
MOST_ROWS = 256
"""Queries of a request."""
MOST_PAIRS = 40_000
"""Keys of all layers and queries of a request."""
MOST_NAMED = 5


@dataclass(slots=True)
class Attended:
    """What one query attended to.

    Attributes:
        step: number of the step; ``None`` in a plain forward pass.
        query: position of the query; ``None`` of all queries of the step together.
        last: whether it is the last one of its step, which chose a token.
        layers: keys with their weight, by path of the layer.
    """

    step: int | None
    query: int | None
    last: bool
    layers: dict[str, list[tuple[int, float]]] = field(default_factory=dict)


def attention_of(request: Request, records: Sequence[Mapping[str, Value]]) -> list[Attended]:
    """What the queries of a request attended to, by step and position; empty if nothing is known."""
    found: dict[tuple[int, int], Attended] = {}
    room = MOST_PAIRS
    for attended, layer, pairs in (*_of_records(records), *_of_spans(request)):
        key = (-1 if attended.step is None else attended.step, -1 if attended.query is None else attended.query)
        if key not in found and len(found) >= MOST_ROWS:
            continue
        room -= len(pairs)
        if room < 0:
            break
        found.setdefault(key, attended).layers.setdefault(layer, pairs)
    whole = {key[0] for key in found if key[1] >= 0}
    return [found[key] for key in sorted(found) if key[1] >= 0 or key[0] not in whole]


def _of_records(records: Sequence[Mapping[str, Value]]) -> Iterator[tuple[Attended, str, list[tuple[int, float]]]]:
    room = MOST_WEIGHTS
    for record in records:
        weights = _weights(record) if room > 0 else None
        if weights is None or record.get(semconv.ATTENTION_CROSS):
            continue
        values, (heads, queries, keys) = weights
        room -= len(values)
        scale, shift, step = (record.get(key) for key in (semconv.ATTENTION_MAP_SCALE, semconv.ATTENTION_MAP_SHIFT, semconv.STEP_INDEX))
        if not isinstance(scale, float) or not 0 < scale <= 1:
            continue
        first = shift if isinstance(shift, int) and 0 <= shift < MOST_POSITION else 0
        number = step if isinstance(step, int) else None
        for query in range(queries):
            sums = [0] * keys
            for head in range(heads):
                start = (head * queries + query) * keys
                sums = [one + other for one, other in zip(sums, values[start : start + keys], strict=True)]
            largest = sorted(((value, place) for place, value in enumerate(sums) if value), key=lambda one: (-one[0], one[1]))[:MOST_KEYS]
            position = first + max(0, keys - queries) + query
            pairs = [(first + place, value * scale / heads) for value, place in largest]
            yield Attended(number, position, query == queries - 1), str(record.get(semconv.MODULE_NAME)), pairs


def _weights(record: Mapping[str, Value]) -> tuple[bytes, tuple[int, int, int]] | None:
    """The bytes of a record and their shape, without that of the batch; ``None`` of one that is not as it should be."""
    shape, data = record.get(semconv.ATTENTION_MAP_SHAPE), record.get(semconv.ATTENTION_MAP_DATA)
    if not isinstance(shape, tuple) or len(shape) != 4 or not isinstance(data, str):
        return None
    numbers = [one for one in shape if isinstance(one, int) and 0 < one <= LARGEST]
    if len(numbers) != 4 or numbers[0] != 1:
        return None
    size = numbers[1] * numbers[2] * numbers[3]
    if size > LARGEST:
        return None
    try:
        values = zlib.decompressobj().decompress(base64.b64decode(data, validate=True), size)
    except (zlib.error, binascii.Error, ValueError):
        return None
    return (values, (numbers[1], numbers[2], numbers[3])) if len(values) == size else None


def _of_spans(request: Request) -> Iterator[tuple[Attended, str, list[tuple[int, float]]]]:
    for above in (request.span, *request.steps):
        step = above.attributes.get(semconv.STEP_INDEX)
        waiting: list[Span] = [*above.children]
        while waiting:
            span = waiting.pop(0)
            if above is request.span and span in request.phases:
                continue
            waiting = [*span.children, *waiting]
            pairs = _pairs(span.attributes)
            if pairs and not span.attributes.get(semconv.ATTENTION_CROSS):
                shape = span.attributes.get(semconv.ATTENTION_SHAPE)
                alone = isinstance(shape, tuple) and len(shape) == 4 and shape[2] == 1
                attended = Attended(step if isinstance(step, int) else None, None, alone)
                yield attended, str(span.attributes.get(semconv.MODULE_NAME)), pairs


def _pairs(attributes: Mapping[str, Value]) -> list[tuple[int, float]]:
    positions, weights = attributes.get(semconv.ATTENTION_KEY_POSITIONS), attributes.get(semconv.ATTENTION_KEY_WEIGHTS)
    if not isinstance(positions, tuple) or not isinstance(weights, tuple):
        return []
    found = []
    for position, weight in zip(positions, weights, strict=False):
        # A boolean is an integer, too.
        if type(position) is int and isinstance(weight, int | float) and weight is not True and 0 <= position < MOST_POSITION:
            found += [(position, float(weight))] if 0 <= weight <= 1 else []
    return found


def name_attended(table: TokenTable, attended: Sequence[Attended], prompt: Sequence[str]) -> list[str]:
    """Say of each token of the first row what the step that chose it attended to, as the mean over layers; the texts of all positions.

    Args:
        table: of the request.
        attended: of the request.
        prompt: texts of the prompt's tokens, if they are known.
    """
    first = table.rows[0] if table.rows else []
    texts = [*prompt, *(token.text or "" for token in first)] if prompt else []
    by_step = {one.step: one for one in attended if one.last}
    for number, token in enumerate(first):
        one = by_step.get(number)
        if one is None or not one.layers:
            continue
        sums: dict[int, float] = {}
        for pairs in one.layers.values():
            for position, weight in pairs:
                sums[position] = sums.get(position, 0.0) + weight / len(one.layers)
        largest = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_NAMED]
        token.attended = tuple((_label(position, texts), weight) for position, weight in largest)
    return texts


def _label(position: int, texts: Sequence[str]) -> str:
    text = texts[position] if 0 <= position < len(texts) else ""
    return f"{position} {text}" if text else str(position)


def for_page(request: Request, attended: Sequence[Attended], texts: Sequence[str]) -> dict[str, Any]:
    """The attention of a request as the page draws it; empty where nothing is known."""
    missing, layers = request.texts(semconv.ATTENTION_MISSING), request.texts(semconv.ATTENTION_LAYERS)
    if not (attended or missing or layers):
        return {}
    entropies, sinks = request.numbers(semconv.ATTENTION_LAYER_ENTROPIES), request.numbers(semconv.ATTENTION_LAYER_SINKS)
    whole = len(entropies) == len(sinks) == len(layers)
    paths = list(dict.fromkeys([*layers, *(layer for one in attended for layer in one.layers)]))
    places = {path: place for place, path in enumerate(paths)}
    return {
        "layers": plain(paths),
        "entropies": rounded(list(entropies if whole else ())),
        "sinks": rounded(list(sinks if whole else ())),
        "missing": plain(list(missing)),
        "leftOut": plain(request.number(semconv.ATTENTION_LEFT_OUT)) or 0,
        "texts": plain(list(texts)),
        "queries": [[one.step, one.query, _rows(one, places)] for one in attended],
    }


def _rows(one: Attended, places: Mapping[str, int]) -> list[list[Any]]:
    """A row for each layer: its number, and its keys with their weights."""
    return [[places[layer], [[key, rounded(weight)] for key, weight in pairs]] for layer, pairs in one.layers.items()]
