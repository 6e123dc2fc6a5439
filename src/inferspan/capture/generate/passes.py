"""Forward passes of the root inside a ``generate()`` that the helpers of transformers do not announce.

A loop that calls no helper at all has these passes as its steps: the first, or those until the prompt is through, are the prefill, and a
token is known when the next pass begins. In a loop that does call them, another pass of the root between two steps, such as the one without
a prompt in classifier-free guidance, belongs to the step before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from inferspan.guard import report

from .arguments import main_input

if TYPE_CHECKING:
    from inferspan.capture.request import Request

__all__ = ["RootPasses"]


class RootPasses:
    """The root's passes in one ``generate()``, as hooks on the root see them. Contains errors of its own.

    Args:
        request: that is recorded.
        prompt: positions of a row of the prompt, if the passes are known to go over them.
        reused: those that are in the cache when it begins.

    Attributes:
        drafting: whether the passes verify drafted tokens, so that their raw logits are wanted as soon as they return.
        helped: whether the loop has called a helper.
        inside: passes that are running, one inside the other.
        cache: what the last pass has returned as its cache.
        used: whether passes were taken for steps.
        guided: whether the model has run again between two steps.
        fresh: whether a pass has ended as a step since this was last set to false.
    """

    __slots__ = (
        "_began",
        "_fed",
        "_main",
        "_prompt",
        "_request",
        "_reused",
        "_steps",
        "_total",
        "cache",
        "drafting",
        "fresh",
        "guided",
        "helped",
        "inside",
        "used",
    )

    def __init__(self, request: Request, *, prompt: int | None, reused: int) -> None:
        self._request, self._steps = request, request.steps
        self._prompt, self._reused = prompt, reused
        self._fed = 0
        self._total = reused
        self._main: Any = None
        self._began = 0
        self.inside = 0
        self.drafting = self.helped = self.used = self.guided = self.fresh = False
        self.cache: Any = None

    def enter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, told: bool) -> None:
        """The root is called; ``told`` says whether the length of the row is known otherwise."""
        self.inside += 1
        if self.inside > 1:
            return
        try:
            steps = self._steps
            self._began = steps.now()
            if self.helped:
                self.guided = True
                return
            self.used = True
            # The tokens that were chosen by them are not known.
            steps.logits = None
            steps.prepare()
            main = main_input(kwargs)[1]
            if main is None and args and isinstance(args[0], Tensor) and args[0].dim() >= 2:
                main = args[0]
            self._main = main
            if main is not None:
                width = int(main.shape[1])
                # Without a cache all of the row goes in again.
                self._total = width if width > self._total and self._fed else self._total + width
                self._fed += width
                if steps.first_token is not None and not told:
                    steps.length = self._total
            steps.begin(main)
        except Exception as error:
            report("start of a step", error)

    def leave(self, output: Any, failure: str | None) -> None:
        """The root has returned, or failed with an exception of this type."""
        self.inside -= 1
        if self.inside:
            return
        try:
            steps = self._steps
            now = steps.now()
            if self.helped:
                self._add(now)
                return
            self.fresh = True
            main, self._main = self._main, None
            if failure is not None:
                steps.close(now, (), failure)
                return
            logits = None
            if isinstance(output, dict):
                logits, self.cache = dict.get(output, "logits"), dict.get(output, "past_key_values")
            steps.end(logits, main)
            if main is None or self._prompt is None or self._reused + self._fed >= self._prompt:
                steps.awaiting = True
            else:
                steps.cached += int(main.shape[1])
        except Exception as error:
            report("end of a step", error)

    def _add(self, now: int) -> None:
        """The model has run once more for the step that has ended last: its modules belong to that step."""
        steps, request = self._steps, self._request
        modules, number = steps.modules, steps.index - 1
        held = steps.rows.stretch(number, now)
        if request.recording and request.recorded:
            modules.cut(number if held else None, steps.phase, self._began, now, None)
            modules.reopen()
        steps.last = now

    def drop(self) -> None:
        """Drop every tensor."""
        self.cache = self._main = None
