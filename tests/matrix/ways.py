"""Ways to run ``generate()``: what is done to the model beforehand, what is passed, and how it is called."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from . import wrappers
from .kinds import EOS, Kind

__all__ = ["WAYS", "Run", "Way", "prepared"]

NEW = 4


@dataclass
class Run:
    """One call, ready to be made.

    Attributes:
        kind: kind of the model.
        model: what ``generate()`` is called on.
        given: what the caller passes by name: prompt, mask, features.
        options: generation options.
        start: positions of the returned rows before the first generated token.
        eos: the token that ends a row.
    """

    kind: Kind
    model: Any
    given: dict[str, Any]
    options: dict[str, Any]
    start: int
    eos: int = EOS

    def generate(self) -> Any:
        """Call it as most programs do."""
        import torch

        torch.manual_seed(0)
        with torch.no_grad():
            return self.model.generate(**self.given, **{**self.options})


@dataclass(frozen=True)
class Way:
    """A way to run ``generate()``.

    Attributes:
        name: what the page calls it.
        prepare: changes a run before the model is instrumented; a new one each time.
        call: makes the call.
        rows: rows of the prompt, if not two.
        needs: packages without which the test is skipped.
        around: what has to be there meanwhile.
    """

    name: str
    prepare: Callable[[Run], None]
    call: Callable[[Run], Any] = Run.generate
    rows: int = 2
    needs: tuple[str, ...] = ()
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


def prepared(kind: Kind, way: Way) -> Run:
    """A new model and a call that is ready to be made; twice the same."""
    given = {key: value[-way.rows :] for key, value in kind.given().items()}
    exactly = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW}
    run = Run(kind, kind.model(), given, exactly, kind.start(given))
    way.prepare(run)
    return run


def _options(**options: Any) -> Callable[[Run], None]:
    def prepare(run: Run) -> None:
        run.options |= options

    return prepare


def _dictionary(run: Run) -> None:
    """Whisper cuts off the start of its decoder in a tensor only."""
    run.start = max(run.start, 1)
    run.options |= {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


def _early_end(run: Run) -> None:
    """The end token is the second one that the last row would get."""
    run.eos = int(run.generate()[-1, run.start + 1])
    run.options |= {"eos_token_id": run.eos, "min_new_tokens": None}


def _streamed(run: Run) -> None:
    from transformers.generation.streamers import BaseStreamer

    class Streamer(BaseStreamer):
        def put(self, value: Any) -> None:
            pass

        def end(self) -> None:
            pass

    run.options["streamer"] = Streamer()


def _own_criterion(run: Run) -> None:
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Third(StoppingCriteria):
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, input_ids: Any, scores: Any, **more: Any) -> Any:
            self.calls += 1
            return torch.full((input_ids.shape[0],), self.calls == 3)

    run.options |= {"stopping_criteria": StoppingCriteriaList([Third()]), "max_new_tokens": 8, "min_new_tokens": None}


def _own_processor(run: Run) -> None:
    import torch
    from transformers import LogitsProcessor, LogitsProcessorList

    class Only(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            wanted = torch.full_like(scores, -torch.inf)
            wanted[:, 7:9] = scores[:, 7:9]
            return wanted

    run.options["logits_processor"] = LogitsProcessorList([Only()])


def _assisted(run: Run) -> None:
    import torch

    draft = run.kind.model()
    with torch.no_grad():
        for weight in draft.parameters():
            weight.mul_(1.05)
    run.options |= {"assistant_model": draft, "max_new_tokens": 8, "min_new_tokens": 8}


def _embeddings(run: Run) -> None:
    import torch

    with torch.no_grad():
        run.given["inputs_embeds"] = run.model.get_input_embeddings()(run.given.pop("input_ids"))
    run.start = min(run.start, 1) if run.model.config.is_encoder_decoder else 0


def _continued(run: Run) -> None:
    """The prompt but for its last two tokens is in the cache already."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=run.model.config)
    with torch.no_grad():
        run.model(input_ids=run.given["input_ids"][:, :-2], attention_mask=run.given["attention_mask"][:, :-2], past_key_values=cache)
    run.options["past_key_values"] = cache


def _bfloat16(run: Run) -> None:
    import torch

    run.model.to(torch.bfloat16)
    run.given = {key: value.to(torch.bfloat16) if value.is_floating_point() else value for key, value in run.given.items()}


def _compiled_forward(run: Run) -> None:
    import torch

    torch._dynamo.reset()
    run.model.forward = torch.compile(run.model.forward, backend="eager", dynamic=True)


def _compiled_model(run: Run) -> None:
    import torch

    torch._dynamo.reset()
    run.model.compile(backend="eager", dynamic=True)


def _copied(run: Run) -> None:
    run.model = copy.deepcopy(run.model)


def _in_a_thread(run: Run) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run.generate()))
    thread.start()
    thread.join()
    return found[0]


def _in_inference_mode(run: Run) -> Any:
    import torch

    with torch.inference_mode():
        return run.model.generate(**run.given, **run.options)


def _in_autocast(run: Run) -> Any:
    import torch

    with torch.autocast("cpu", dtype=torch.bfloat16):
        return run.generate()


def _own_loop(run: Run) -> None:
    """A decoding loop that calls none of transformers' helpers."""
    import torch

    def loop(model: Any, input_ids: Any, **more: Any) -> Any:
        for _ in range(NEW):
            logits = model(input_ids=input_ids).logits
            input_ids = torch.cat([input_ids, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
        return input_ids

    run.options["custom_generate"] = loop


def _by_hand(run: Run) -> Any:
    """Greedy decoding without a cache, written by hand around ``inferspan.generation()``."""
    import torch
    from opentelemetry._logs import NoOpLoggerProvider
    from opentelemetry.metrics import NoOpMeterProvider
    from opentelemetry.trace import NoOpTracerProvider

    import inferspan

    model, given = run.model, dict(run.given)
    encoder = bool(model.config.is_encoder_decoder)
    if encoder:
        start = model.generation_config.decoder_start_token_id
        rows = torch.full((len(next(iter(given.values()))), 1), model.config.decoder_start_token_id if start is None else start)
    else:
        rows, mask = given.pop("input_ids"), given.pop("attention_mask")
    # They count only where the model is not instrumented.
    nowhere: dict[str, Any] = {"tracer_provider": NoOpTracerProvider(), "meter_provider": NoOpMeterProvider(), "logger_provider": NoOpLoggerProvider()}
    with torch.no_grad(), inferspan.generation(model, input_tokens=run.given, max_new_tokens=NEW, **nowhere) as g:
        for step in range(NEW):
            inputs = {"decoder_input_ids": rows} if encoder else {"input_ids": rows, "attention_mask": mask}
            with g.step() if step else g.prefill():
                output = model(**given, **inputs, use_cache=False)
            chosen = output.logits[:, -1].argmax(-1)
            g.token(output.logits, chosen)
            rows = torch.cat([rows, chosen[:, None]], 1)
            if not encoder:
                mask = torch.cat([mask, torch.ones_like(chosen[:, None])], 1)
        g.finish("length")
    return rows[:, 1 - run.start :] if encoder else rows


def _wrapped(wrap: Callable[[Any], Any]) -> Callable[[Run], None]:
    def prepare(run: Run) -> None:
        run.model = wrap(run.model)

    return prepare


WAYS = {
    way.name: way
    for way in (
        Way("greedy", _options()),
        Way("sampling", _options(do_sample=True, top_k=20, temperature=0.9)),
        Way("beam search", _options(num_beams=3)),
        Way("several sequences", _options(do_sample=True, num_return_sequences=2)),
        Way("rows that end early", _early_end),
        Way("streamer", _streamed, rows=1),
        Way("dictionary output", _dictionary),
        Way("own stopping criterion", _own_criterion),
        Way("own logits processor", _own_processor),
        Way("no cache", _options(use_cache=False)),
        Way("static cache", _options(cache_implementation="static")),
        Way("prefill in chunks", _options(prefill_chunk_size=3)),
        Way("prompt in the cache", _continued),
        Way("embeddings as the prompt", _embeddings),
        Way("assisted by a draft model", _assisted, rows=1),
        Way("prompt lookup", _options(prompt_lookup_num_tokens=3, max_new_tokens=8, min_new_tokens=8), rows=1),
        Way("own loop (`custom_generate`)", _own_loop, rows=1),
        Way("loop by hand (`inferspan.generation()`)", _options(), _by_hand),
        Way("in a thread", _options(), _in_a_thread),
        Way("`inference_mode`", _options(), _in_inference_mode),
        Way("autocast to bfloat16", _options(), _in_autocast),
        Way("bfloat16 weights", _bfloat16),
        Way("a deep copy", _copied),
        Way("`forward` compiled", _compiled_forward),
        Way("`model.compile()`", _compiled_model),
        Way("LoRA (PEFT)", _wrapped(wrappers.lora), needs=("peft",)),
        Way("LoRA, merged", _wrapped(wrappers.merged), needs=("peft",)),
        Way("dynamic int8", _wrapped(wrappers.int8)),
        Way("int8 weights (torchao)", _wrapped(wrappers.torchao_int8), needs=("torchao",)),
        Way("LLM.int8 (bitsandbytes)", _wrapped(wrappers.bitsandbytes_int8), needs=("bitsandbytes",)),
        Way("offloaded to memory (accelerate)", _wrapped(wrappers.offloaded), needs=("accelerate",)),
        Way("offloaded to disk (accelerate)", _wrapped(wrappers.on_disk), needs=("accelerate",)),
        Way("FSDP2, one rank", _wrapped(wrappers.sharded), around=wrappers.distributed),
    )
}
"""By name."""
