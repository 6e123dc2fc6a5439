"""Loads as spans: files, bytes and tensors equal those on disk, and what is loaded is what was loaded without."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import inferspan
from inferspan import semconv, zero_code
from tests.cases import models
from tests.cases.telemetry import Telemetry

Loading = Callable[..., Any]


@pytest.fixture
def loading(telemetry: Telemetry) -> Iterator[Loading]:
    """Observes loading with the listener's provider until the test ends."""
    handles = []

    def begin(**options: Any) -> Any:
        handles.append(inferspan.instrument_loading(tracer_provider=telemetry.tracer_provider, **options))
        return handles[-1]

    yield begin
    for handle in handles:
        handle.uninstrument()


def loads(telemetry: Telemetry) -> list[dict[str, Any]]:
    """Attributes of the spans of loads, by start."""
    return [dict(span.attributes or {}) for span in telemetry.spans(semconv.SPAN_LOAD)]


def _saved(folder: Path, **options: Any) -> Path:
    models.llama().save_pretrained(folder, **options)
    return folder


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "20KB"}], ids=["one file", "shards"])
def test_checkpoint(telemetry: Telemetry, loading: Loading, tmp_path: Path, options: dict[str, Any]) -> None:
    """Names, number, bytes, tensors and dtypes of the files are those on disk, and no attribute has the folder."""
    from safetensors import safe_open
    from transformers import LlamaForCausalLM

    folder = _saved(tmp_path / "secret" / "tiny", **options)
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 1 if options else len(files) == 1
    tensors = 0
    for path in files:
        with safe_open(path, framework="pt") as file:
            tensors += len(list(file.keys()))
    loading()
    model = LlamaForCausalLM.from_pretrained(folder)
    (load,) = loads(telemetry)
    assert sorted(load[semconv.CHECKPOINT_FILES]) == [path.name for path in files]
    assert load[semconv.CHECKPOINT_SHARDS] == len(files)
    assert load[semconv.CHECKPOINT_BYTES] == sum(path.stat().st_size for path in files)
    assert load[semconv.CHECKPOINT_TENSORS] == tensors
    assert load[semconv.CHECKPOINT_DTYPES] == ("float32",)
    assert load[semconv.MODEL_NAME] == "tiny"
    assert load[semconv.MODEL_ARCHITECTURE] == "LlamaForCausalLM"
    assert load[semconv.MODEL_DTYPE] == "float32"
    assert load[semconv.DEVICE] == str(model.device)
    assert load[semconv.LOAD_KIND] == "model"
    assert "secret" not in str(load)
    telemetry.check()


def test_parts_and_event(telemetry: Telemetry, loading: Loading, tmp_path: Path) -> None:
    """The parts are spans below it, their seconds are on it, and the event says that the checkpoint is loaded."""
    from transformers import LlamaForCausalLM

    folder = _saved(tmp_path)
    loading()
    LlamaForCausalLM.from_pretrained(folder)
    (span,) = telemetry.spans(semconv.SPAN_LOAD)
    parts = {part.name: part for part in telemetry.spans() if part.parent is not None}
    assert [*parts] == ["resolve", "read"]
    attributes = span.attributes or {}
    for name, part in parts.items():
        seconds = attributes[semconv.LOAD_TIMES[name]]
        assert seconds == pytest.approx((part.end_time - part.start_time) / 1e9)  # type: ignore[operator]
    (event,) = span.events
    assert event.name == "checkpoint_loaded"
    told = dict(event.attributes or {})
    assert {key: attributes[key] for key in told} == told
    assert {semconv.CHECKPOINT_FILES, semconv.CHECKPOINT_BYTES, semconv.LOAD_READ_TIME, semconv.MODEL_DTYPE, semconv.DEVICE} <= told.keys()


def test_loads_are_no_requests_of_a_report(tmp_path: Path) -> None:
    """A report of the session counts the requests, not the loads, and misses no span."""
    from inferspan.report.session import read_session
    from tests.zero_code.programs import run

    models.llama().save_pretrained(tmp_path / "tiny")
    (tmp_path / "app.py").write_text(
        "import torch\nfrom transformers import LlamaForCausalLM\n"
        "model = LlamaForCausalLM.from_pretrained('tiny')\nmodel.generate(torch.tensor([[1, 5]]), max_new_tokens=2)\n"
    )
    result = run("-m", "inferspan", "run", "--trace-output", "s.jsonl", "app.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    session = read_session(tmp_path / "s.jsonl")
    assert len(session.requests) == 1
    assert session.orphan_spans == 0
    assert '"load"' in (tmp_path / "s.jsonl").read_text()


def test_weights_are_the_same(loading: Loading, tmp_path: Path) -> None:
    """What is loaded is equal to what was saved, also with ``output_loading_info``."""
    from transformers import AutoModelForCausalLM

    folder = _saved(tmp_path)
    loading()
    kind: Any = AutoModelForCausalLM
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    saved = models.llama().state_dict()
    assert all(torch.equal(weight, saved[name]) for name, weight in model.state_dict().items())


def test_dtype_of_model_and_file(telemetry: Telemetry, loading: Loading, tmp_path: Path) -> None:
    """A checkpoint that is loaded in another dtype has both."""
    from transformers import LlamaForCausalLM

    folder = _saved(tmp_path)
    loading()
    LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    (load,) = loads(telemetry)
    assert (load[semconv.CHECKPOINT_DTYPES], load[semconv.MODEL_DTYPE]) == (("float32",), "bfloat16")


def test_failed_load(telemetry: Telemetry, loading: Loading, tmp_path: Path) -> None:
    """A load that fails raises the library's own exception; the span is an error without the folder."""
    from transformers import LlamaForCausalLM

    folder = tmp_path / "secret" / "tiny"
    _saved(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match=r"model\.safetensors") as without:
        LlamaForCausalLM.from_pretrained(folder)
    loading()
    with pytest.raises(OSError, match=r"model\.safetensors") as seen:
        LlamaForCausalLM.from_pretrained(folder)
    assert str(seen.value) == str(without.value)
    assert traceback.format_exception_only(seen.value) == traceback.format_exception_only(without.value)
    (span,) = telemetry.spans(semconv.SPAN_LOAD)
    assert span.status.status_code.name == "ERROR"
    assert (span.attributes or {})[semconv.ERROR_TYPE] == "OSError"
    assert [event.name for event in span.events] == ["exception"]
    assert "secret" not in f"{span.status.description} {dict(span.events[0].attributes or {})['exception.message']}"
    telemetry.check()


def test_tokenizer(telemetry: Telemetry, loading: Loading, tmp_path: Path) -> None:
    """So is a tokenizer's."""
    from transformers import PreTrainedTokenizerFast

    from tests.cases.facts.test_operation import _tokenizer

    _tokenizer().save_pretrained(tmp_path / "words")
    loading()
    PreTrainedTokenizerFast.from_pretrained(tmp_path / "words")
    assert [(load[semconv.LOAD_KIND], load[semconv.MODEL_NAME]) for load in loads(telemetry)] == [("tokenizer", "words")]


def test_models_inside_a_pipeline(telemetry: Telemetry, loading: Loading, tmp_path: Path) -> None:
    """The load of a pipeline of diffusers holds those of its models, each with its file."""
    diffusers = pytest.importorskip("diffusers")
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    unet = diffusers.UNet2DModel(sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8,), norm_num_groups=4, **blocks)
    diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler()).save_pretrained(tmp_path / "pipe")
    loading()
    diffusers.DDPMPipeline.from_pretrained(tmp_path / "pipe")
    spans = telemetry.spans(semconv.SPAN_LOAD)
    kinds = {(span.attributes or {})[semconv.LOAD_KIND]: span for span in spans}
    assert [*kinds] == ["pipeline", "model"]
    assert kinds["model"].parent is not None
    (path,) = (tmp_path / "pipe" / "unet").glob("*.safetensors")
    assert (kinds["model"].attributes or {})[semconv.CHECKPOINT_BYTES] == path.stat().st_size
    telemetry.check()


def test_taken_off(telemetry: Telemetry, loading: Loading, tmp_path: Path) -> None:
    """After ``uninstrument()`` the functions are the library's own and nothing is recorded."""
    from transformers import PreTrainedModel, modeling_utils

    before = PreTrainedModel.__dict__["from_pretrained"], modeling_utils._get_resolved_checkpoint_files
    loading().uninstrument()
    assert (PreTrainedModel.__dict__["from_pretrained"], modeling_utils._get_resolved_checkpoint_files) == before
    assert loads(telemetry) == []


def test_zero_code_and_an_explicit_call(telemetry: Telemetry, observe: Callable[..., Any], loading: Loading, tmp_path: Path) -> None:
    """Zero code records loads by itself; with ``instrument_loading()`` besides, a load is still one span."""
    from transformers import LlamaForCausalLM

    folder = _saved(tmp_path)
    observe()
    LlamaForCausalLM.from_pretrained(folder)
    assert len(loads(telemetry)) == 1
    handle = loading()
    LlamaForCausalLM.from_pretrained(folder)
    assert len(loads(telemetry)) == 2
    handle.uninstrument()
    LlamaForCausalLM.from_pretrained(folder)
    assert len(loads(telemetry)) == 3
    zero_code.deactivate()
    LlamaForCausalLM.from_pretrained(folder)
    assert len(loads(telemetry)) == 3


def test_span_of_the_program_is_the_parent(telemetry: Telemetry, loading: Loading, tmp_path: Path) -> None:
    """A load belongs to the program's current span, and is current itself while it runs."""
    from transformers import LlamaForCausalLM

    folder = _saved(tmp_path)
    loading()
    with telemetry.tracer_provider.get_tracer("program").start_as_current_span("start-up") as parent:
        LlamaForCausalLM.from_pretrained(folder)
    (span,) = telemetry.spans(semconv.SPAN_LOAD)
    assert span.parent is not None
    assert span.parent.span_id == parent.get_span_context().span_id
    assert json.loads(span.to_json())["kind"] == "SpanKind.INTERNAL"
    telemetry.check()
