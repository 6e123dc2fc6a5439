"""Thousands of damaged session files: the reader, the table and the page never raise anything but ``SessionFileError``."""

from __future__ import annotations

import copy
import gzip
import json
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferspan import semconv
from inferspan.report.html import render
from inferspan.report.payload import payload
from inferspan.report.session import SessionFileError, read_session
from inferspan.report.terminal import summary
from tests.report.conftest import START, Recording, add_failure, add_generate, otlp_attributes

MUTATIONS = 5_000
SEED = 20_240
NODE = shutil.which("node")
FAKE_PAGE = Path(__file__).with_name("fake_page.js")

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, int("9" * 400), 0.5, -0.0, 1e308, -1e308, 5e-324, float("inf"), float("nan"),
    "", "9" * 400, "-" + "9" * 5000, "NaN", "-Infinity", "1e400", "\ud800", "\x00", "__proto__", "constructor", "</script>", "x" * 10_000,
    "STATUS_CODE_ERROR", [], {}, [[]], [{}], [None], {"__proto__": {"toString": 1}}, {"stringValue": 5}, {"intValue": "1e3"},
    {"arrayValue": {"values": [{"kvlistValue": {"values": [{"key": "a", "value": {"doubleValue": "NaN"}}]}}]}},
)  # fmt: skip
KEYS = ("attributes", "startTimeUnixNano", "dataPoints", "histogram", "exponentialHistogram", "summary", "sum", "scale", "asInt", "__proto__", "key")
BYTES = (b"", b"\x00", b"\xff\xfe", b"\n", b"\r\n", b"{", b"]", b'"', b"\\u", b"9" * 400, b"[" * 3000, b"\xed\xa0\x80", b"NaN", b"-", b"1e999")


def whole_session() -> list[dict[str, Any]]:
    """A small session with every kind of thing that a file may hold."""
    recording = Recording()
    request = add_generate(recording, 10, layers=1, content=True)
    add_failure(recording, 200)
    recording.spans[0]["links"] = [{"traceId": "1" * 32, "spanId": "2" * 16, "attributes": otlp_attributes({"a": [1, 2]})}]
    when = str(START)
    buckets = {"bucketCounts": ["0", "2", "0"], "explicitBounds": [0.01, 0.1]}
    recording.metric("h", "histogram", "s", [{"count": "2", "sum": 0.04, **buckets, "min": 0.02, "max": 0.02, "timeUnixNano": when}])
    signed = {"offset": -3, "bucketCounts": ["1", "0", "2"]}
    exponential = {"count": "7", "sum": 1.0, "scale": 3, "zeroCount": "1", "positive": signed, "negative": signed, "timeUnixNano": when}
    recording.metric("e", "exponentialHistogram", "By", [exponential, exponential])
    recording.metric("q", "summary", "1", [{"count": "2", "sum": 4.0, "quantileValues": [{"quantile": 0.5, "value": 2.0}]}])
    recording.metric("c", "sum", "{token}", [{"asInt": str(number), "timeUnixNano": str(START + number)} for number in range(3)])
    recording.metric("g", "gauge", "1", [{"asDouble": 0.5, "timeUnixNano": when, "attributes": otlp_attributes({"k": "v"})}])
    lines = [json.loads(line) for line in recording.lines()]
    content: dict[str, Any] = {"eventName": semconv.CONTENT_EVENT, "traceId": f"{1:032x}", "spanId": request}
    content["attributes"] = otlp_attributes({semconv.INPUT_MESSAGES: json.dumps([{"role": "user", "parts": [{"content": "hi"}]}])})
    return [*lines, {"resourceLogs": [{"scopeLogs": [{"logRecords": [content]}]}]}]


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a tree with every key or index in it."""
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            yield holder, key
            if isinstance(value, dict | list):
                waiting.append(value)


def change_values(lines: list[Any], chance: random.Random) -> bytes:
    """Replace, remove, rename or repeat one to four values of a session."""
    lines = copy.deepcopy(lines)
    for _ in range(chance.randint(1, 4)):
        holder, key = chance.choice(list(places(lines)))
        kind = chance.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.extend([holder[key]] * chance.choice((1, 40)))
        elif kind == 2 and isinstance(holder, dict):
            holder[chance.choice(KEYS)] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def change_bytes(lines: list[Any], chance: random.Random) -> bytes:
    """Cut, repeat, overwrite or insert bytes; some files are packed before."""
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    if chance.random() < 0.2:
        data = gzip.compress(data, 1)
    for _ in range(chance.randint(1, 3)):
        begin = chance.randrange(len(data) + 1)
        end = min(len(data), begin + chance.choice((0, 1, 10, 1000, len(data))))
        kind = chance.randrange(4)
        if kind == 0:
            data = data[:begin] + data[end:]
        elif kind == 1:
            data = data[:begin] + data[begin:end] * 2 + data[end:]
        elif kind == 2:
            data = data[:begin] + chance.choice(BYTES) + data[end:]
        else:
            data = data[:begin] + chance.randbytes(chance.choice((1, 20))) + data[begin:]
    return data


def mutations(number: int) -> Iterator[bytes]:
    """Damaged files, the same in every run."""
    lines, chance = whole_session(), random.Random(SEED)
    for _ in range(number):
        yield chance.choice((change_values, change_values, change_bytes))(lines, chance)


def largest_integer(tree: Any) -> int:
    """The largest integer of a JSON document, without its sign."""
    numbers = [holder[key] for holder, key in places(tree) if isinstance(holder[key], int)]
    return max(map(abs, numbers), default=0)


def refuse(word: str) -> None:
    """JSON has no such number."""
    raise AssertionError(word)


def test_the_whole_session_is_read(tmp_path: Path) -> None:
    """What is damaged below is read without a remark when it is not."""
    path = tmp_path / "session.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in whole_session()))
    session = read_session(path)
    assert session.notes == []
    assert [series.name for series in session.series] == ["c", "e", "g", "h", "q"]


def test_damaged_files_raise_nothing_else(tmp_path: Path) -> None:
    """Reading, the table and the page's data get along with each file, in bounded time and memory, and the data is strict JSON."""
    path, refused, slowest = tmp_path / "session.jsonl", 0, 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, data in enumerate(mutations(MUTATIONS)):
        path.write_bytes(data)
        begin = time.thread_time()
        try:
            session = read_session(path)
            summary(session)
            text = json.dumps(payload(session), allow_nan=False)
        except SessionFileError:
            refused += 1
            continue
        except Exception as error:
            kept = tmp_path / "damaged.jsonl"
            kept.write_bytes(data)
            pytest.fail(f"mutation {number} of seed {SEED}: {type(error).__name__}: {error}")
        finally:
            slowest = max(slowest, time.thread_time() - begin)
        assert largest_integer(json.loads(text, parse_constant=refuse)) <= 2**53
    assert 0 < refused < MUTATIONS / 2
    assert slowest < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


@pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")
def test_pages_of_damaged_files_are_drawn(tmp_path: Path) -> None:
    """The page's script runs to its end with what is left of each file, and every part of the page is drawn."""
    path, pages = tmp_path / "session.jsonl", []
    for data in mutations(400):
        path.write_bytes(data)
        try:
            pages.append(payload(read_session(path)) | {"title": "t", "version": "v"})
        except SessionFileError:
            continue
    path.write_text("".join(json.dumps(line) + "\n" for line in whole_session()))
    (tmp_path / "page.html").write_text(render(read_session(path)), encoding="utf-8")
    (tmp_path / "pages.json").write_text(json.dumps(pages), encoding="utf-8")
    command = [NODE or "", str(FAKE_PAGE), str(tmp_path / "page.html"), str(tmp_path / "pages.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr == ""
    assert json.loads(done.stdout) == {"drawn": len(pages), "problems": []}
