"""The matrix: which kinds of models are run in which ways, and what is recorded of each pair.

The tests of this folder run every pair, and ``docs/generate.py`` writes ``docs/coverage.md`` from this table. A pair that is missing here
cannot be run without inferspan either, or would say nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .kinds import GENERATING
from .pictured import TASKS
from .pipelines import CALLS
from .plain import MODULES, PASSES
from .staged import STAGE_WAYS, STAGED
from .ways import WAYS

__all__ = ["BATCHED", "CALLED", "CALLED_UNCHANGED", "GENERATE", "PLAIN", "STAGES", "ZERO_CODE", "Outcome", "exact", "fault", "not_recorded", "said"]


@dataclass(frozen=True)
class Outcome:
    """What is recorded of a pair.

    Attributes:
        requests: how many requests.
        unobserved: ``inferspan.unobserved`` of the request, or ``None``.
        reason: why there is no request.
        warned: whether a line in the log says that nothing will be recorded.
        wrong: what is wrong today; the test of the pair is expected to fail then, and fails if it does not.
    """

    requests: int = 1
    unobserved: str | None = None
    reason: str | None = None
    warned: bool = False
    wrong: str | None = None

    def __str__(self) -> str:
        if self.wrong is not None:
            return f"wrong: {self.wrong}"
        if self.reason is not None:
            return f"not recorded{', and said' if self.warned else ''}: {self.reason}"
        return "exact" if self.unobserved is None else f"not seen, and said: {self.unobserved}"


exact = Outcome()


def said(what: str) -> Outcome:
    """All is exact but for ``what``, which the request names itself."""
    return Outcome(unobserved=what)


def not_recorded(reason: str) -> Outcome:
    """No request, because of what the user runs."""
    return Outcome(requests=0, reason=reason)


def fault(what: str) -> Outcome:
    """Known to be wrong."""
    return Outcome(wrong=what)


def _row(chosen: Iterable[str], usual: Outcome = exact) -> dict[str, Outcome]:
    return dict.fromkeys(chosen, usual)


def _but(chosen: Iterable[str], *without: str) -> list[str]:
    return [name for name in chosen if name not in without]


ALL = list(GENERATING)
TEXT = ["Llama", "GPT-2", "OPT", "GPT-NeoX", "Gemma", "Mistral (sliding window)", "Qwen2", "Mixtral (experts)"]
"""Decoders of text with a cache of keys and values."""
MAMBA = "Mamba (state space)"
LLAVA, AUDIO = "Llava (images and text)", "Qwen2-Audio (sound and text)"
COMPILED = said("modules: compiled")

GENERATE: dict[str, dict[str, Outcome]] = {
    "greedy": _row(ALL),
    "sampling": _row(ALL),
    "beam search": _row(ALL),
    "several sequences": _row(ALL),
    "rows that end early": _row(ALL),
    "streamer": _row(ALL),
    "dictionary output": _row(ALL),
    "own stopping criterion": _row(ALL),
    "own logits processor": _row(ALL),
    "no cache": _row(ALL),
    "static cache": _row(ALL),
    "prefill in chunks": _row(_but(ALL, MAMBA, AUDIO, "Whisper")),
    "prompt in the cache": _row([*TEXT, MAMBA]),
    "embeddings as the prompt": _row([*TEXT, MAMBA, "T5", "BART", "BERT to BERT"]),
    "assisted by a draft model": _row(_but(ALL, MAMBA, LLAVA)),
    "prompt lookup": _row(_but(ALL, MAMBA)),
    "own loop (`custom_generate`)": _row([*TEXT, MAMBA, AUDIO], said("logits: chosen tokens not seen")),
    "loop by hand (`inferspan.generation()`)": _row(ALL),
    "in a thread": _row(ALL),
    "`inference_mode`": _row(ALL),
    "autocast to bfloat16": _row(ALL),
    "bfloat16 weights": _row(ALL),
    "a deep copy": _row(ALL),
    "`forward` compiled": _row(["Llama", "GPT-2"], COMPILED),
    "`model.compile()`": _row(["Llama", "T5"], COMPILED),
    "LoRA (PEFT)": _row(_but(ALL, "GPT-2", MAMBA)),
    "LoRA, merged": _row(_but(ALL, "GPT-2", MAMBA)),
    "dynamic int8": _row(_but(ALL, MAMBA)),
    "int8 weights (torchao)": _row(_but(ALL, MAMBA)),
    "LLM.int8 (bitsandbytes)": _row(["Llama", "OPT", "Qwen2", "T5", LLAVA]),
    "offloaded to memory (accelerate)": _row(_but(ALL, AUDIO, "Whisper")),
    "offloaded to disk (accelerate)": _row(_but(ALL, AUDIO, "Whisper")),
    "FSDP2, one rank": _row([*TEXT, MAMBA, AUDIO]),
}
"""Outcome of each kind of model by the way to run ``generate()``."""

ZERO_CODE: dict[str, dict[str, Outcome]] = {
    "greedy": _row(ALL),
    "streamer": _row(ALL),
    "in a thread": _row(ALL),
    "a deep copy": _row(ALL),
    "`model.compile()`": _row(["Llama", "T5"], COMPILED),
}
"""The same of models that are built under zero code and called without ``instrument()``."""
BATCHING = said("modules: continuous batching; logits: continuous batching")

PAGED = _but(TEXT, "OPT", "GPT-NeoX")
"""Models that can read a paged cache."""
BATCHED: dict[str, dict[str, Outcome]] = {
    "`generate_batch()`": _row(PAGED, BATCHING),
    "requests that stream": _row(PAGED, BATCHING),
    "several sequences": _row(PAGED, BATCHING),
    "prefill in chunks": _row(PAGED, BATCHING),
    "an end token": _row(PAGED, BATCHING),
}
"""Outcome of each kind of model by the way to run continuous batching."""

SEQUENCE_FIRST = "nn.LSTM (sequence first)"
MODULES_ALL = _but(MODULES, SEQUENCE_FIRST)
TORCH = ["nn.Linear", "nn.Sequential", "nn.Embedding", "nn.LSTM", "nn.GRU", "nn.MultiheadAttention", "nn.TransformerEncoder", "nn.Transformer"]
COMPILABLE = ["nn.Linear", "nn.Sequential", "nn.LSTM", "nn.TransformerEncoder", "autoencoder", "BERT (classes)"]
COPY = not_recorded("a copy is another module")
SCRIPT = not_recorded("the traced function is another module")
SCRIPTED, HOOKED = said("modules: scripted"), said("context: hooks")
WITHOUT_CACHE = _but(MODULES_ALL, "Llama", "T5")
"""A program of ``torch.export`` cannot return a cache."""

NO_LORA = ["nn.Linear", "nn.Embedding", "nn.LSTM", "nn.GRU", "convolutions", "autoencoder", "ResNet", "DETR"]
NOT_OFFLOADED = ["nn.MultiheadAttention", "nn.TransformerEncoder", "nn.Transformer", "DETR"]

PLAIN: dict[str, dict[str, Outcome]] = {
    "`model(...)`": _row(MODULES),
    "training": _row(MODULES_ALL),
    "`inference_mode`": _row(MODULES_ALL),
    # Not those with torch's fused path: hooks turn it off, so after a compilation in the process, when hooks record, the rounding is another.
    "autocast to bfloat16": _row(_but(MODULES_ALL, "nn.TransformerEncoder", "nn.Transformer")),
    "bfloat16 weights": _row(MODULES_ALL),
    "in a thread": _row(MODULES_ALL),
    "inside another module": _row(MODULES_ALL),
    "`functional_call`": _row(MODULES_ALL),
    "checkpointed": _row(MODULES_ALL),
    "a deep copy of it": _row(MODULES_ALL, COPY),
    "a pickled copy of it": _row(_but(MODULES_ALL, "autoencoder", "wav2vec 2"), COPY),
    "`model.compile()`": _row(COMPILABLE, COMPILED),
    "`torch.compile`, then instrumented": {**_row(COMPILABLE, COMPILED), "nn.Linear": exact, "nn.LSTM": exact},
    "instrumented, then `torch.compile`": {**_row(COMPILABLE, COMPILED), "nn.Linear": exact, "nn.LSTM": exact},
    "traced, then instrumented": _row([*TORCH, "convolutions", "autoencoder", "BERT (features)"], SCRIPTED),
    "instrumented, then traced": _row([*TORCH, "convolutions", "autoencoder", "BERT (features)"], SCRIPT),
    "scripted, then instrumented": _row([*_but(TORCH, "nn.LSTM", "nn.GRU"), "convolutions"], SCRIPTED),
    "exported, then instrumented": _row(_but(WITHOUT_CACHE, "DETR", "CLIP"), HOOKED),
    "instrumented, then exported": _row(_but(WITHOUT_CACHE, "DETR", "CLIP"), not_recorded("the program is another module")),
    "parts compiled": _row(_but(COMPILABLE, "nn.Linear", "nn.LSTM"), said("modules: compiled in parts")),
    "`torch.compile` of `forward`": _row(COMPILABLE, COMPILED),
    "called in a compiled function": {**_row(COMPILABLE, not_recorded("the call is a part of the compiled function")), "nn.LSTM": exact},
    "LoRA (PEFT)": _row(_but(MODULES_ALL, *NO_LORA)),
    "LoRA, merged": _row(_but(MODULES_ALL, *NO_LORA)),
    "dynamic int8": _row(_but(MODULES_ALL, "nn.TransformerEncoder", "nn.Transformer")),
    "int8 weights (torchao)": _row(MODULES_ALL),
    "offloaded to memory (accelerate)": _row(_but(MODULES_ALL, *NOT_OFFLOADED)),
    "offloaded to disk (accelerate)": _row(_but(MODULES_ALL, *NOT_OFFLOADED)),
    "DataParallel": _row(MODULES_ALL),
    "instrumented, then DataParallel": _row(MODULES_ALL),
    "DDP, one rank": _row(MODULES_ALL),
    "instrumented, then DDP": _row(MODULES_ALL),
    "FSDP2, one rank": _row(_but(MODULES_ALL, "CLIP")),
    "instrumented, then FSDP2": _row(_but(MODULES_ALL, "CLIP")),
}
"""Outcome of each kind of module by the way to run a forward pass."""

STAGED_ALL = [*STAGED]
STAGED_GENERATING = _but(STAGED, "CLIP")
PROMPTED = ["LLaVA", "LLaVA-Next", "Qwen2-VL", "Qwen2.5-VL", "Idefics3", "SmolVLM", "PaliGemma", "Qwen2-Audio"]
"""Those that can do without an image or sound."""

STAGES: dict[str, dict[str, Outcome]] = {
    "greedy": _row(STAGED_GENERATING),
    "without module spans": _row(STAGED_GENERATING),
    "without step spans": _row(STAGED_GENERATING),
    "every module of every step": _row(STAGED_GENERATING),
    "beam search": _row(STAGED_GENERATING),
    "no cache": _row(STAGED_GENERATING),
    "words only": _row(PROMPTED),
    "encoder compiled": _row(["LLaVA", "Qwen2-VL", "BLIP-2", "Whisper"], said("modules: compiled in parts; stages: compiled")),
    "`model(...)`": _row(STAGED_ALL),
    "`model(...)`, words only": _row(PROMPTED),
}
"""Stages of each kind of multimodal model by the way to run it."""
MATCHING, SEEN, SPEECH = "keypoint-matching", "image-text-to-text", "text-to-audio (SpeechT5)"
# What transformers cannot run: a data set of chats, a list of pictures with words, pairs of pictures except in a list by itself.
CANNOT = {
    "a list": [SEEN],
    "a list in batches": [SEEN, MATCHING, SPEECH],
    "a generator": [MATCHING],
    "a data set": ["text-generation (chat)", f"{SEEN} (chat)", MATCHING],
}
# SpeechT5 has a loop of its own.
OWN_LOOP = said("steps: no forward pass of the model was seen")
CALLED: dict[str, dict[str, Outcome]] = {
    way: {name: OWN_LOOP if name == SPEECH else exact for name in _but(TASKS, *CANNOT.get(way, []))} for way in CALLS
}
"""Outcome of each pipeline by the way to call it."""
CALLED_UNCHANGED = {way: CALLED[way] for way in ("a list", "a list in batches", "a generator")}
"""The same of the first call of pipelines that are built under zero code and called without ``instrument()``."""


def _check(table: dict[str, dict[str, Outcome]], ways: Iterable[str], kinds: Iterable[str]) -> None:
    assert [*table] == [*ways]
    assert not {name for row in table.values() for name in row} - {*kinds}


_check(GENERATE, WAYS, GENERATING)
_check(PLAIN, PASSES, MODULES)
_check(STAGES, STAGE_WAYS, STAGED)
_check(CALLED, CALLS, TASKS)
