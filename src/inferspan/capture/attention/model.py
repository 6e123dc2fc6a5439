"""Attention of one model: which layers are looked at, for how long functions are observed, and how a request ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from inferspan.guard import contain
from inferspan.records import ModuleInfo, RequestEnd
from inferspan.settings import Settings

from .layers import Layers
from .log import AttentionLog, Options
from .maps import pack
from .patches import patches
from .watch import AttentionWatch, attributes_of

__all__ = ["ModelAttention", "settle"]

MOST_PROMPT = 1024
"""Tokens of a prompt whose texts stand on the request."""


class ModelAttention:
    """What is looked at in one model.

    Attributes:
        wanted: the setting ``attention``.
        options: the other settings.
        layers: that are meant.
        watch: what has been found.
        patched: whether functions that compute attention are observed for this model.
    """

    def __init__(self, settings: Settings) -> None:
        self.wanted: Any = settings.attention
        self.options = Options.of(settings)
        self.layers: Layers | None = None
        self.watch = AttentionWatch()
        self.patched = False

    def configure(self, settings: Settings) -> None:
        """Look at other layers from the next request on."""
        self.wanted, self.options = settings.attention, Options.of(settings)

    def select(self, root: nn.Module) -> Sequence[tuple[nn.Module, ModuleInfo, nn.Module]]:
        """The modules to hook.

        Raises:
            SettingsError: a pattern matches no layer.
        """
        self.layers = None if self.wanted == "none" else Layers(root, self.wanted)
        return () if self.layers is None else self.layers.entries(root)

    def take_over(self, other: ModelAttention) -> None:
        """Go on with what another one has found: the model was taken out of the other's."""
        self.watch = other.watch

    def refuse(self, path: str, *, fused: bool) -> None:
        """A module could not be hooked."""
        if self.layers is not None:
            self.layers.unhooked[path] = "fused kernel" if fused else "with your hooks"

    def patch(self) -> None:
        """Observe the functions that compute attention, where that is wanted and compiled code allows it."""
        if self.layers is not None and not self.patched:
            with contain("attention"):
                self.patched = patches.acquire(self.layers.homes)

    def unpatch(self) -> None:
        """Undo ``patch``."""
        if self.patched:
            self.patched = False
            patches.release()

    def begin(self, call: Any) -> AttentionLog | None:
        """What a request that begins writes to."""
        return None if self.layers is None else AttentionLog(self.layers, self.options, call, patched=lambda: self.patched)

    def forked(self) -> None:
        """Called in a forked child."""
        patches.forked()
        self.watch.forked()


def settle(model: ModelAttention, log: AttentionLog, end: RequestEnd, *, compiled: bool) -> RequestEnd:
    """The end of a request with its attention, which is added to what is known of the model."""
    with contain("attention"):
        prompt: list[str] = []
        if end.decode is not None and log.prompt:
            decode = end.decode
            log.name_tokens(end.sequences, decode)
            if model.options.maps:
                prompt = [decode(one) for one in log.prompt[0][:MOST_PROMPT]]
        missing = log.layers.missing(log.totals, log.reasons, compiled=compiled)
        attributes = attributes_of(log, missing, prompt)
        kept = [call for call in log.calls if call.weights is not None]
        model.watch.add(log, missing, model.options.memory)
        maps = partial(pack, kept) if kept else None
        end = replace(end, attributes={**end.attributes, **attributes}, attention_maps=maps)
    return end
