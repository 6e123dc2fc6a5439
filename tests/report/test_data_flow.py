"""The data flow as links of spans: what a session file holds of it, and what the command ``graph`` and the report make of that."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.trace import SpanContext, TraceFlags

import inferspan
from inferspan import semconv
from inferspan.cli import main
from inferspan.export import protobuf
from inferspan.records import FlowCall, FlowEdge, ModuleBatch, ModuleCalls, ModuleInfo, PassFlow, PhaseKey
from inferspan.report.data_flow import flow_of
from inferspan.report.html import render
from inferspan.report.session import read_session
from inferspan.spans.packed.modules import ModulePacker
from tests.capture.data_flow.models import UNet, edges
from tests.cases import models as real
from tests.cases.telemetry import Telemetry
from tests.report.test_document import check, report_of
from tests.support.programs import elsewhere

X = torch.arange(12.0).view(3, 4)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """After a compilation in the process operations are not followed."""
    torch._dynamo.reset()


def _record(path: str) -> tuple[set[str], set[str]]:
    """Write a session file of a plain pass and of a generation; their edges as the handles have them."""
    unet, llama = UNet().eval(), real.llama()
    options: dict[str, Any] = {"modules": "all", "data_flow": "operations", "session_file": path, "nvml": False, "host": False}
    first, second = inferspan.instrument(unet, **options), inferspan.instrument(llama, **options)
    with torch.no_grad():
        unet(X)
    llama.generate(real.prompt(), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    found = edges(first.data_flow(), final=False), edges(second.data_flow(step=1), final=False)
    first.uninstrument()
    second.uninstrument()
    inferspan.flush()
    return found


def _record_without(path: str) -> None:
    """Write a session file of a pass without a data flow."""
    model = UNet()
    handle = inferspan.instrument(model, session_file=path, modules="all", nvml=False, host=False)
    model(X)
    handle.uninstrument()
    inferspan.flush()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, set[str], set[str]]:
    """What ``_record`` has written and returned, in a process of its own."""
    path = tmp_path_factory.mktemp("recorded") / "session.jsonl"
    found = elsewhere(_record, str(path))
    return path.read_bytes(), *found


@pytest.fixture
def recorded(recording: tuple[bytes, set[str], set[str]], tmp_path: Path) -> tuple[Path, set[str], set[str]]:
    """A session file of a plain pass and of a generation, and their edges as the handles have them."""
    path = tmp_path / "session.jsonl"
    path.write_bytes(recording[0])
    return path, recording[1], recording[2]


def test_a_session_file_has_the_edges_of_the_handle(recorded: tuple[Path, set[str], set[str]]) -> None:
    """By the links of the spans of modules."""
    path, plain, generated = recorded
    session = read_session(path)
    first, second = flow_of(session, 1), flow_of(session, step=1)
    assert first is not None
    assert second is not None
    assert edges(first, final=False) == plain
    assert edges(second, final=False) == generated
    assert any("~" in edge for edge in generated)
    assert flow_of(session, 1, step=3) is None


def test_links_lead_to_spans_of_the_trace(telemetry: Telemetry) -> None:
    """Each link of a module is to the span of the module that it names, or to that of the pass."""
    model = UNet()
    telemetry.instrument(model, modules="all", data_flow="operations")
    model(X)
    spans = {span.context.span_id: span for span in telemetry.spans() if span.context is not None}
    (forward,) = telemetry.forwards()
    count = 0
    for module in telemetry.modules():
        for link in module.links:
            count += 1
            described = dict(link.attributes or {})
            linked = spans[link.context.span_id]
            assert module.context is not None
            assert link.context.trace_id == module.context.trace_id
            if described[semconv.FLOW_KIND] == "result" or described[semconv.FLOW_ORIGIN] == "input":
                assert linked is forward
            else:
                assert (linked.attributes or {})[semconv.MODULE_NAME] == described[semconv.FLOW_SOURCE]
    assert count == (forward.attributes or {})[semconv.FLOW_EDGES]
    telemetry.check()


def test_links_of_one_module_are_bounded(telemetry: Telemetry) -> None:
    """At most 32, and the span says how many are missing."""

    class Many(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts, self.joined = torch.nn.ModuleList(torch.nn.Identity() for _ in range(40)), _Join()

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.joined([part(hidden + number) for number, part in enumerate(self.parts)])
            return result

    model = Many()
    handle = telemetry.instrument(model, modules="all", data_flow="modules")
    model(X)
    (span,) = [one for one in telemetry.modules() if (one.attributes or {})[semconv.MODULE_NAME] == "joined"]
    assert len(span.links) == 32
    assert (span.attributes or {})[semconv.FLOW_LEFT_OUT] == 40 + 1 - 32
    assert len([edge for edge in handle.data_flow() if edge.consumer == "joined"]) == 40


class _Join(torch.nn.Module):
    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(parts)


def test_packed_links() -> None:
    """The direct path sends the same links; a pass with a data flow is packed span by span."""
    infos = [ModuleInfo(f"m.{number}", "Linear", number, f"layer {number}") for number in range(30)]
    calls = ModuleCalls((n, -1, infos[n], n, n + 1, (), (), None, None) for n in range(30))
    edge = FlowEdge("input", 0, 1, "module", "m.0", 5, -1, (2, 3), "float32", 24, ("add",))
    flow = PassFlow(0, tuple(FlowCall(n, -1, infos[n].name, "Linear") for n in range(30)), (edge,), {})
    batch = ModuleBatch(0, PhaseKey("decode", 0), 10, calls, {}, flow=flow)
    packer = ModulePacker()
    for _ in range(3):
        pieces = [packed for packed, _ in packer.pack(SpanContext(7, 8, False, TraceFlags(1)), batch, 9)]
    spans = _spans(b"".join(pieces))
    assert [len(span.links) for span in spans] == [0, 1, *[0] * 28]
    (link,) = spans[1].links
    assert link.span_id == spans[0].span_id
    assert (link.trace_id, link.flags) == ((7).to_bytes(16, "big"), 0x100)
    values = {one.key: one.value for one in link.attributes}
    assert values[semconv.FLOW_SHAPE].string_value == "2x3"
    assert [one.string_value for one in values[semconv.FLOW_VIA].array_value.values] == ["add"]
    assert values[semconv.FLOW_BYTES].int_value == 24


def _spans(packed: bytes) -> list[ProtoSpan]:
    from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

    return list(ScopeSpans.FromString(packed).spans)


def test_a_link_without_attributes_is_packed_as_before() -> None:
    """The short form and the general one are the same message."""
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    short = Span.FromString(protobuf.link(b"t" * 16, b"s" * 8, 0x100)).links[0]
    general = Span.FromString(protobuf.link(b"t" * 16, b"s" * 8, 0x100, {"key": 1})).links[0]
    del general.attributes[:]
    assert short == general


# ------------------------------------------------------------------------------------------------------------- command
def test_the_command(recorded: tuple[Path, set[str], set[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Text by default, other formats by option or suffix, of any request and step; ignored modules are one box."""
    path = str(recorded[0])
    assert main(["graph", path, "--request", "1"]) == 0
    assert "  down1 -> up1.conv: 3x8 float32, 96 B; via cat; skips; 2 consumers" in capsys.readouterr().out.splitlines()
    assert main(["graph", path, "--step", "1", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 1
    target = tmp_path / "out.svg"
    assert main(["graph", path, "-o", str(target), "--request", "1", "--ignore", "_Up"]) == 0
    assert "up1.conv" not in target.read_text()
    assert "ignored" in target.read_text()
    assert main(["graph", path, "-o", str(tmp_path / "out.dot"), "--depth", "1"]) == 0
    assert (tmp_path / "out.dot").read_text().startswith("digraph")
    packed = tmp_path / "session.jsonl.gz"
    packed.write_bytes(gzip.compress(recorded[0].read_bytes()))
    assert main(["graph", str(packed)]) == 0


@pytest.mark.parametrize(("options", "told"), [
    (["--request", "9"], "the session has 2 requests"), (["--step", "77"], "no data flow of this request and step"),
    (["--ignore", "re:(", "--format", "svg"], "no regular expression"), (["--depth", "0", "--format", "dot"], "depth is 1 or more"),
    (["-o", "/nowhere/there/x.svg"], "cannot write"),
])  # fmt: skip
def test_wrong_arguments(
    recorded: tuple[Path, set[str], set[str]], capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    """They are told in one line."""
    assert main(["graph", str(recorded[0]), *options]) == 2
    assert told in capsys.readouterr().err


def test_a_file_without_a_data_flow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command names the settings that are needed."""
    path = tmp_path / "session.jsonl"
    elsewhere(_record_without, str(path))
    assert main(["graph", str(path)]) == 2
    assert "data_flow=operations" in capsys.readouterr().err


def test_a_session_file_is_not_overwritten(recorded: tuple[Path, set[str], set[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is it touched."""
    before = recorded[0].read_bytes()
    assert main(["graph", str(recorded[0]), "-o", str(recorded[0])]) == 2
    assert "overwrite the session file" in capsys.readouterr().err
    assert recorded[0].read_bytes() == before


def test_the_report_shows_it(recorded: tuple[Path, set[str], set[str]]) -> None:
    """As a section of its own, with a picture in which no script runs."""
    page = render(read_session(recorded[0]))
    assert re.search(r'"flow":"data:image/svg\+xml;base64,[A-Za-z0-9+/=]{1000,}"', page)


def test_the_json_report_has_the_pass_that_the_page_draws(recorded: tuple[Path, set[str], set[str]]) -> None:
    """The same modules and edges, as the command writes them, with the number of the request."""
    found = report_of(recorded[0])
    check(found)
    flow = found["data_flow"]
    drawn = flow_of(read_session(recorded[0]))
    assert drawn is not None
    assert flow.pop("request") == 2
    assert flow == json.loads(drawn.to_json())
    assert len(flow["edges"]) > 10


def test_links_that_cannot_be_read_are_counted(recorded: tuple[Path, set[str], set[str]], tmp_path: Path) -> None:
    """Other values than ours cost an edge."""
    known, odd = (f'"{semconv.FLOW_ORIGIN}","value":{{"stringValue":"{value}"}}' for value in ("input", "odd"))
    text = recorded[0].read_text().replace(known, odd)
    path = tmp_path / "odd.jsonl"
    path.write_text(text)
    flow = flow_of(read_session(path), 1)
    assert flow is not None
    assert flow.left_out == {"links that cannot be read": 1}
