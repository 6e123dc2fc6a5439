"""Attention of one request: which calls are looked at, their figures on the device, and what is read of them when it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn

from inferspan.capture.compile.transforms import is_capturing
from inferspan.capture.modules.device_rows import DeviceRows, Place, is_plain
from inferspan.guard import read_attribute
from inferspan.records import AttributeValue
from inferspan.settings import Settings

from .calls import of_interface, of_torch
from .figures import Layout, figures_of, on_host, read
from .layers import Layers, has_window, is_cross, why_none
from .results import AttentionCall, ReceivedKey
from .scores import Scores, allowed_rows, no_autocast
from .totals import LayerTotals

__all__ = ["AttentionLog", "Found", "Options"]

PIECE = 1 << 22
"""Weights that are worked on at once."""
LARGEST = {"cpu": 1 << 28}
"""Weights of a call beyond which it is left out: it would take seconds."""
LARGEST_ELSEWHERE = 1 << 34
_COPIES = 8
"""Temporary values for each weight of a piece."""
MOST_CALLS = 1 << 14
"""Calls of one request."""
KEPT_CALLS = 1024
"""The latest ones of a request, as they are shown."""
OVER = "over attention_memory"


@dataclass(frozen=True)
class Options:
    """The settings: which steps and heads, bytes for one request, and whether weights are kept."""

    every_step: bool = False
    heads: tuple[int, ...] | None = None
    memory: int = 64 << 20
    maps: bool = False

    @staticmethod
    def of(settings: Settings) -> Options:
        """Those of ``settings``."""
        every = settings.attention_steps == "all" or settings.every_step
        heads = settings.attention_heads
        return Options(every, None if heads is None else tuple(heads), int(settings.attention_memory * (1 << 20)), settings.attention_maps)


class _Candidate:
    """A tensor that may be attention weights, on the device until it is read."""

    __slots__ = ("kept", "layout", "place", "values")

    def __init__(self, layout: Layout, place: Place[int], kept: Tensor | None) -> None:
        self.layout, self.place, self.kept = layout, place, kept
        self.values: list[float] = []


class Found:
    """Weights of one call; the figures are there once they are read."""

    __slots__ = ("call", "candidates", "counted", "heads")

    def __init__(self, call: AttentionCall, candidates: list[_Candidate], heads: tuple[int, ...] | None) -> None:
        self.call = call
        self.candidates = candidates
        self.heads = heads
        self.counted = False
        """Whether a span has the attributes."""

    def attributes(self) -> dict[str, AttributeValue]:
        """For the span of the call, if it has one."""
        return self.call.attributes() if self.call.rows else {}


class Frame:
    """A call of a layer that is running."""

    __slots__ = ("found", "gave", "module", "name", "reason", "step")

    def __init__(self, name: str, module: nn.Module, step: int | None) -> None:
        self.name, self.module, self.step = name, module, step
        self.found: list[Found] = []
        self.gave = False
        """Whether weights were found in it, or in a module inside it."""
        self.reason: str | None = None


class AttentionLog:
    """What is found in one request. Used on its thread only; callers contain exceptions.

    Args:
        layers: of the model.
        options: the settings.
        call: the request.
        patched: whether the functions that compute attention are observed.

    Attributes:
        frames: calls of layers that are running, the outermost first.
        inside: depth of attention functions of transformers that are running; they call that of torch.
        left_out: calls by reason.
        calls: with figures, once they are read; the latest ones.
        totals: of all calls, by layer.
        reasons: why layers that were called gave none.
        prompt: ids of the tokens of the prompt, once they are read; empty without content capture.
    """

    def __init__(self, layers: Layers, options: Options, call: Any, *, patched: Callable[[], bool]) -> None:
        self.layers = layers
        self._options, self._call, self._patched = options, call, patched
        self.frames: list[Frame] = []
        self.inside = 0
        self._rows: DeviceRows[int] = DeviceRows()
        self._unread: list[Found] = []
        self._bytes = self._taken = 0
        self.left_out: Counter[str] = Counter()
        self.calls: list[AttentionCall] = []
        self.totals: dict[str, LayerTotals] = {}
        self.reasons: dict[str, str] = {}
        self.prompt: list[list[int]] = []
        self.steps: set[int | None] = set()

    # --------------------------------------------------------------------------------------------------- on the model's path
    def _step(self) -> tuple[bool, int | None]:
        """Whether calls are looked at now, and the number of the open step."""
        steps = getattr(self._call, "steps", None)
        if steps is None:
            return True, None
        index = steps.index
        return self._options.every_step or not index & (index - 1), index if steps.open else None

    def enter(self, name: str, module: nn.Module) -> None:
        """A call of a layer begins."""
        wanted, step = self._step()
        if not wanted or is_capturing():
            return
        # What is not around this layer, or of another step, was left behind by an exception.
        while self.frames and (self.frames[-1].step != step or not name.startswith(f"{self.frames[-1].name}.")):
            self.frames.pop()
            self.inside = 0
        self.frames.append(Frame(name, module, step))

    def leave(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> list[Found]:
        """A call of a layer ends; what was found in it."""
        if not any(frame.name == name for frame in self.frames):
            return []
        frame = self.frames.pop()
        while frame.name != name:
            frame = self.frames.pop()
        self.steps.add(frame.step)
        if not frame.gave and isinstance(output, tuple | list):
            # The second part by convention; T5 returns its position bias there, and the weights after it.
            parts = [one for one in output[1:4] if isinstance(one, Tensor) and one.dim() == 4]
            if parts:
                self._take_returned(frame, parts, (*args, *kwargs.values()), kwargs)
        if not frame.gave:
            self.reasons[name] = frame.reason or why_none(frame.module, output, patched=self._patched())
        elif self.frames:
            self.frames[-1].gave = True
            self.frames[-1].found += frame.found
        return frame.found

    def observe(self, name: str | None, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """An attention function was called in the innermost layer.

        Args:
            name: of the function in transformers; ``None`` is that of torch.
            args: positional arguments.
            kwargs: others.
            output: of the function.
        """
        frame = self.frames[-1]
        if frame.gave:
            self.left_out["further call in a layer"] += 1
            return
        weights = output[1] if name is not None and isinstance(output, tuple) and len(output) > 1 else None
        if isinstance(weights, Tensor) and weights.dim() == 4:
            self._take_returned(frame, [weights], (*args, *kwargs.values()), kwargs)
            return
        with torch.no_grad():
            scores = of_torch(args, kwargs) if name is None else of_interface(name, args, kwargs)
            refusal = scores if isinstance(scores, str) else scores.refusal()
            if refusal is None and isinstance(scores, Scores):
                heads = scores.choose(self._options.heads)
                refusal = None if scores.query.numel() else "no such head"
                with no_autocast(scores.query):
                    if refusal is None:
                        refusal = self._launch(frame, scores, heads, kwargs)
        if refusal is not None:
            self._refuse(frame, refusal)

    def _refuse(self, frame: Frame, reason: str) -> None:
        frame.reason = reason
        self.left_out[reason] += 1

    def _launch(self, frame: Frame, scores: Scores, heads: tuple[int, ...] | None, kwargs: Mapping[str, Any]) -> str | None:
        values = scores.key.numel() // scores.key.shape[0]
        if 4 * values > self._options.memory:
            return OVER
        candidate = self._candidate(Layout(*scores.shape), scores.weights, scores.query)
        if isinstance(candidate, str):
            return candidate
        self._add(frame, "recomputed", [candidate], heads, kwargs)
        return None

    def _take_returned(self, frame: Frame, parts: Sequence[Tensor], others: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        candidates: list[_Candidate] = []
        refusal, chosen = "kind of tensor", None
        with torch.no_grad():
            for whole in parts:
                if not is_plain(whole) or not whole.numel():
                    continue
                weights = whole.detach()
                if self._options.heads is not None:
                    chosen = tuple(head for head in self._options.heads if head < whole.shape[1])
                    if not chosen:
                        refusal = "no such head"
                        continue
                    weights = torch.stack([weights[:, head] for head in chosen], 1)
                made = self._candidate(Layout(*weights.shape), _Returned(weights, _mask_among(whole, others)), whole)
                if isinstance(made, str):
                    refusal = made
                else:
                    candidates.append(made)
        if candidates:
            self._add(frame, "returned", candidates, chosen, kwargs)
        else:
            self._refuse(frame, refusal)

    def _candidate(self, layout: Layout, weights: Callable[[slice, slice], Tensor], like: Tensor) -> _Candidate | str:
        """Launch the figures of weights; why not, in a word or two, if they are left out."""
        memory = self._options.memory
        row = layout.heads * layout.keys
        largest = LARGEST.get(like.device.type, LARGEST_ELSEWHERE)
        piece = min(PIECE, memory // (4 * _COPIES))
        width = 8 if like.dtype is torch.float64 else 4
        size = layout.bytes(width)
        if row > piece or self._bytes + size > memory or self._taken >= MOST_CALLS:
            return OVER
        if row * layout.queries * layout.batch > largest:
            return "too large"
        kept: list[Tensor] | None = None
        if self._options.maps:
            whole = row * layout.queries * layout.batch * width
            if self._bytes + size + whole > memory:
                self.left_out["map " + OVER] += 1
            else:
                kept, size = [], size + whole
        queries = max(1, min(layout.queries, piece // row))
        rows = max(1, min(layout.batch, piece // (row * queries)))
        vector = figures_of(weights, layout, rows, queries, kept)
        self._bytes += size
        self._taken += 1
        place = self._rows.append(vector.numel(), vector.reshape(1, -1))
        return _Candidate(layout, place, None if not kept else kept[0] if len(kept) == 1 else torch.cat(kept))

    def _add(
        self, frame: Frame, source: str, candidates: list[_Candidate], heads: tuple[int, ...] | None, kwargs: Mapping[str, Any]
    ) -> None:
        frame.gave = True
        cross = is_cross(frame.name, frame.module, kwargs)
        layout = candidates[0].layout
        shift = 0
        if not cross and frame.step and has_window(frame.module, kwargs):
            shift = max(0, (self._call.steps.length or 0) - layout.keys)
        now = perf_counter_ns() + self._call.offset
        call = AttentionCall(frame.name, frame.step, now, source, layout.shape, cross=cross, shift=shift)
        found = Found(call, candidates, heads)
        frame.found.append(found)
        self._unread.append(found)

    # ------------------------------------------------------------------------------------------------------------- afterwards
    def read(self) -> None:
        """Read what has been launched; may wait for the device."""
        if not self.prompt:
            self.prompt = self._read_prompt()
        unread, self._unread = self._unread, []
        groups = self._rows.read()
        by_layout: dict[tuple[Layout, torch.dtype], list[_Candidate]] = {}
        for candidate in (candidate for found in unread for candidate in found.candidates):
            by_layout.setdefault((candidate.layout, candidate.place.group[1]), []).append(candidate)
        with torch.no_grad():
            for (layout, _), some in by_layout.items():
                vectors = [groups[one.place.group][one.place.order][0] for one in some]
                for candidate, values in zip(some, on_host(vectors, layout), strict=True):
                    candidate.values = values
        for found in unread:
            for candidate in found.candidates:
                layout = candidate.layout
                call = replace(found.call, shape=layout.shape)
                figures = read(candidate.values, layout, call, found.heads)
                if figures is not None:
                    kept = candidate.kept
                    found.call = figures if kept is None else figures.with_figures(weights=kept.cpu())
                    self.calls.append(found.call)
                    self.totals.setdefault(found.call.module, LayerTotals()).add(found.call)
                    break
            else:
                self.left_out["not weights"] += 1
                self.reasons.setdefault(found.call.module, "not weights")
            found.candidates = []
        del self.calls[:-KEPT_CALLS]

    def _read_prompt(self) -> list[list[int]]:
        """Ids of the tokens that the layers of a decoder-only model attend to before the first one is generated."""
        arguments = getattr(getattr(self._call.adapter, "run", None), "arguments", None)
        owner = self._call.owner
        if arguments is None or not owner.settings.content_on_spans or _is_pair(owner.model):
            return []
        for ids in (arguments.input_ids, arguments.inputs):
            if type(ids) is Tensor and ids.dim() == 2 and not ids.is_floating_point():
                return [[int(one) for one in row] for row in ids.tolist()]
        return []

    def name_tokens(self, sequences: Sequence[Sequence[int]], decode: Callable[[int], str]) -> None:
        """Put texts to the keys, for layers that attend to tokens.

        Args:
            sequences: ids of what was generated.
            decode: text of an id.
        """
        prompt = self.prompt
        rows = [[*ids, *sequences[row]] for row, ids in enumerate(prompt)] if len(prompt) == len(sequences) else []
        width = len(prompt[0]) if prompt else 0
        for number, call in enumerate(self.calls):
            if call.cross or call.step is None or call.shape[0] != len(rows) or not (call.step or width in call.shape[2:]):
                continue
            named = tuple(tuple(_named(key, ids, decode) for key in keys) for keys, ids in zip(call.received_per_key, rows, strict=False))
            self.calls[number] = call.with_figures(received_per_key=named)


def _is_pair(model: Any) -> bool:
    return bool(read_attribute(read_attribute(model, "config"), "is_encoder_decoder", False))


def _named(key: ReceivedKey, ids: Sequence[int], decode: Callable[[int], str]) -> ReceivedKey:
    return replace(key, token=decode(ids[key.position])) if 0 <= key.position < len(ids) else key


def _mask_among(weights: Tensor, values: Sequence[Any]) -> Tensor | None:
    """The mask among the arguments of a layer: it tells queries that see nothing, to which eager attention gives equal weights."""
    batch, heads, queries, keys = weights.shape
    for one in values:
        if not isinstance(one, Tensor) or one.dim() != 4 or not (one.dtype is torch.bool or is_plain(one)):
            continue
        if one.shape[0] in (1, batch) and one.shape[1] in (1, heads) and one.shape[2] in (1, queries) and one.shape[3] >= keys:
            return _true_is_allowed(one[..., :keys], weights) if one.dtype is torch.bool else one
    return None


def _true_is_allowed(mask: Tensor, weights: Tensor) -> Tensor:
    """A boolean mask in which true is an allowed key: some models hide those. The weights tell, which are 0 at a hidden key."""
    seen = weights[:, :1]
    # Rows in which both occur tell; in one without an allowed key all weights are equal.
    mixed = mask.any(-1) & ~mask.all(-1)
    share = torch.where(mask, seen, 0.0).sum(-1)
    says_hidden = torch.where(mixed, share.float() - 0.5, 0.0).sum() < 0
    return mask ^ (says_hidden | ~mask.any())


class _Returned:
    """Weights that a module has returned, piece by piece as numbers of at least float32."""

    def __init__(self, weights: Tensor, mask: Tensor | None) -> None:
        self._weights, self._mask = weights, mask

    def __call__(self, rows: slice, queries: slice) -> Tensor:
        some = self._weights[rows, :, queries]
        some = some if some.dtype is torch.float64 else some.float()
        mask = self._mask
        if mask is None:
            return some
        if mask.shape[0] == self._weights.shape[0]:
            mask = mask[rows]
        if mask.shape[2] == self._weights.shape[2]:
            mask = mask[:, :, queries]
        allowed = allowed_rows(mask, some.shape[-1])
        # A mask of its own for each head, such as one with biases of positions, hides a query from all of them.
        allowed = allowed.any(1, keepdim=True) if allowed.shape[1] > 1 else allowed
        return some.masked_fill(~allowed[..., None], 0.0)
