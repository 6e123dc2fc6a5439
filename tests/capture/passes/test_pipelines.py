"""Pipelines of transformers beyond the matrix: chunks, streams, failures, and pipelines that are loaded late."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
import transformers
from transformers import Pipeline
from transformers.pipelines.pt_utils import PipelineIterator

import inferspan
from inferspan import semconv
from tests.cases.telemetry import Telemetry
from tests.matrix.kinds import noise
from tests.matrix.pictured import TASKS
from tests.matrix.pipelines import GREEDY, PIPELINES, TEXTS, images

SPEECH: dict[str, tuple[int, dict[str, Any]]] = {
    "automatic-speech-recognition (CTC)": (2400, {"chunk_length_s": 0.05}),
    "automatic-speech-recognition (Whisper)": (40000, {"chunk_length_s": 1}),
}


def _attributes(telemetry: Telemetry) -> list[dict[str, Any]]:
    return [dict(span.attributes or {}) for span in telemetry.roots()]


@pytest.mark.parametrize("kind", SPEECH)
@pytest.mark.parametrize("lazy", [False, True], ids=["list", "generator"])
def test_chunks_of_an_input_are_one_request(telemetry: Telemetry, kind: str, lazy: bool) -> None:
    """Long sounds are cut into chunks: a list of them is one request, and each item of a generator is one."""
    length, options = SPEECH[kind]
    if "Whisper" in kind and "vocab" not in inspect.signature(transformers.WhisperTokenizer).parameters:
        pytest.skip("the tokenizer of this transformers is made of files only")
    task, sounds = PIPELINES[kind], [noise(length).numpy(), noise(length // 2).numpy()]
    pipeline, chunks = task.pipeline(), []
    options = {**task.options, **options}
    original = pipeline.preprocess

    def preprocess(*args: Any, **kwargs: Any) -> Any:
        chunks.append(0)
        for chunk in original(*args, **kwargs):
            chunks[-1] += 1
            yield chunk

    pipeline.preprocess = preprocess
    telemetry.instrument(pipeline)
    results = [*pipeline((sound for sound in sounds) if lazy else sounds, **options)]
    assert len(results) == 2
    assert min(chunks) > 1
    telemetry.check()
    found = _attributes(telemetry)
    assert [one[semconv.BATCH_SIZE] for one in found] == (chunks if lazy else [sum(chunks)])
    if task.generates:
        assert sum(one[semconv.OUTPUT_TOKENS] for one in found) == 3 * sum(chunks)
        assert len(telemetry.requests(nested=True)) == sum(chunks)
    else:
        assert [one[semconv.FORWARD_PASSES] for one in found] == (chunks if lazy else [sum(chunks)])


def test_one_prompt_is_its_generate(telemetry: Telemetry) -> None:
    """A call with one prompt is that ``generate()``, with phases directly under it and the task on it."""
    pipeline = PIPELINES["text-generation"].pipeline()
    telemetry.instrument(pipeline)
    pipeline(TEXTS[0], **GREEDY)
    root = telemetry.roots()[0]
    assert [span.name for span in telemetry.spans() if span.parent and root.context and span.parent.span_id == root.context.span_id] == ["prefill", "decode"]
    assert (root.attributes or {})[semconv.PIPELINE_TASK] == "text-generation"


def test_metrics_count_the_call_once(telemetry: Telemetry) -> None:
    """Three prompts in one call are one inference of nine tokens."""
    pipeline = PIPELINES["text-generation"].pipeline()
    telemetry.instrument(pipeline)
    pipeline([*TEXTS], **GREEDY)
    metrics = telemetry.metrics()
    assert [count for _, count in metrics["gen_ai.client.inference.duration"]] == [1]
    assert telemetry.metric_sum("gen_ai.client.inference.operation.output_tokens") == 9
    assert telemetry.metric_sum("inferspan.requests.active") == 0


def test_pictures_with_labels_are_one_request(telemetry: Telemetry) -> None:
    """A list of pictures and one list of labels is one request, though the pipeline runs them as a stream."""
    pytest.importorskip("PIL", reason="the oldest versions are tested without Pillow")
    pipeline = TASKS["zero-shot-object-detection"].pipeline()
    telemetry.instrument(pipeline)
    results = pipeline(images(8)(), candidate_labels=["kind", "again"], threshold=0.0)
    assert len(results) == 3
    telemetry.check()
    found = _attributes(telemetry)
    assert [one[semconv.FORWARD_PASSES] for one in found] == [6]
    assert [one[semconv.PIPELINE_TASK] for one in found] == ["zero-shot-object-detection"]


def test_pictures_with_texts_are_one_generate(telemetry: Telemetry) -> None:
    """As many pictures as texts are rows of one ``generate()``, and words alone are a text completion, in a list too."""
    pytest.importorskip("PIL", reason="the oldest versions are tested without Pillow")
    pipeline = TASKS["image-text-to-text"].pipeline()
    telemetry.instrument(pipeline)
    pipeline(images=[[picture] for picture in images(8)()], text=[f"<image> {text}" for text in TEXTS], generate_kwargs=GREEDY)
    pipeline(text=[*TEXTS], generate_kwargs=GREEDY)
    pipeline(text=TEXTS[0], generate_kwargs=GREEDY)
    telemetry.check()
    found = _attributes(telemetry)
    assert [one[semconv.OPERATION_NAME] for one in found] == ["generate_content", "text_completion", "text_completion"]
    assert [one[semconv.BATCH_SIZE] for one in found] == [3, 3, 1]
    assert [one[semconv.OUTPUT_TOKENS] for one in found] == [9, 9, 3]


def test_encoder_of_words_is_no_stage(telemetry: Telemetry) -> None:
    """The encoder of SpeechT5 says that it takes sound, but is given words when the model speaks."""
    task = TASKS["text-to-audio (SpeechT5)"]
    pipeline = task.pipeline()
    telemetry.instrument(pipeline)
    pipeline(TEXTS[0], **task.options)
    assert telemetry.spans("audio_encode") == []


def test_task_outside_of_a_pipeline(telemetry: Telemetry) -> None:
    """A pass of the same model outside of its pipeline has no task."""
    pipeline = PIPELINES["text-classification"].pipeline()
    telemetry.instrument(pipeline)
    pipeline(TEXTS[0])
    pipeline.model(**pipeline.tokenizer(TEXTS[0], return_tensors="pt"))
    assert [one.get(semconv.PIPELINE_TASK) for one in _attributes(telemetry)] == ["text-classification", None]


def test_truncated_inputs(telemetry: Telemetry) -> None:
    """Inputs that the tokenizer cuts are counted."""
    pipeline = PIPELINES["text-classification"].pipeline()
    telemetry.instrument(pipeline)
    pipeline([*TEXTS], truncation=True, max_length=2)
    assert telemetry.only(telemetry.roots())[semconv.INPUT_TRUNCATED] == 1


@pytest.mark.parametrize("kind", ["text-generation", "text-classification"])
def test_failure_in_the_middle(telemetry: Telemetry, kind: str) -> None:
    """An error of a later batch is the end of the request, and is raised as it is."""
    pipeline = PIPELINES[kind].pipeline()
    telemetry.instrument(pipeline)
    with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
        pipeline([TEXTS[0], None], **PIPELINES[kind].options)
    telemetry.check()
    assert [one[semconv.ERROR_TYPE] for one in _attributes(telemetry)] == [caught.type.__name__]


def test_stream_that_is_left(telemetry: Telemetry) -> None:
    """Of a stream that is not read to its end, the items that were made are requests."""
    pipeline = PIPELINES["text-classification"].pipeline()
    telemetry.instrument(pipeline)
    stream = iter(pipeline(text for text in TEXTS))
    next(stream)
    del stream
    telemetry.check()
    assert len(telemetry.roots()) == 1


def test_stream_in_batches(telemetry: Telemetry) -> None:
    """In a stream in batches the first item of each runs the model, and is the request of the batch."""
    pipeline = PIPELINES["text-classification"].pipeline()
    telemetry.instrument(pipeline)
    assert len([*pipeline((text for text in TEXTS), batch_size=2)]) == len(TEXTS)
    telemetry.check()
    assert [one[semconv.BATCH_SIZE] for one in _attributes(telemetry)] == [2, 1]


def test_setting_names_the_operation(telemetry: Telemetry) -> None:
    """The setting ``operation`` counts for all ways to call a pipeline."""
    pipeline = PIPELINES["text-classification"].pipeline()
    telemetry.instrument(pipeline, operation="embeddings")
    pipeline([*TEXTS])
    assert telemetry.only(telemetry.roots())[semconv.OPERATION_NAME] == "embeddings"


def test_classes_are_put_back(telemetry: Telemetry) -> None:
    """After ``uninstrument()`` the classes of transformers are as they were."""
    before = (Pipeline.__call__, Pipeline.forward, PipelineIterator.__next__)
    telemetry.instrument(PIPELINES["text-classification"].pipeline()).uninstrument()
    assert (Pipeline.__call__, Pipeline.forward, PipelineIterator.__next__) == before


LATE = """
import sys
import inferspan
from inferspan import semconv
from tests.cases import models
from tests.cases.telemetry import Telemetry

model, telemetry, before = models.llama(), Telemetry(), [*sys.meta_path]
telemetry.instrument(model)
assert "transformers.pipelines.base" not in sys.modules
from tests.matrix.pipelines import tokenizer
from transformers import pipeline
made = pipeline("text-generation", model=model, tokenizer=tokenizer())
made(["hello there", "be kind"], max_new_tokens=2, do_sample=False)
telemetry.check()
print(len(telemetry.roots()), telemetry.roots()[0].attributes[semconv.PIPELINE_TASK])
telemetry.close()
print(sys.meta_path == before)
"""


def test_pipelines_that_are_loaded_later() -> None:
    """A model that was instrumented before transformers' pipelines were loaded is seen in them from their first call on."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False)
    assert done.stderr.count("Traceback") == 0, done.stderr
    assert done.stdout.split() == ["1", "text-generation", "True"]


@pytest.mark.parametrize("wrong", ["a name", 3, None, dict, object(), ("model", "tokenizer")], ids=lambda wrong: type(wrong).__name__)
def test_what_is_no_model(wrong: Any) -> None:
    """An object that neither is nor holds a model is refused in one sentence that names its type."""
    with pytest.raises(TypeError, match=type(wrong).__name__):
        inferspan.instrument(wrong)


def test_pipeline_whose_model_cannot_be_read() -> None:
    """A property that raises is no reason for another error."""

    class Broken:
        @property
        def model(self) -> Any:
            raise RuntimeError("not loaded")

    with pytest.raises(TypeError, match="Broken"):
        inferspan.instrument(Broken())
