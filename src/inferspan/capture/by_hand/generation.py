"""A decoding loop of the user's own: the object of ``with inferspan.generation(...) as g:``, an adapter of the recording interface.

In: the blocks around forward passes, and the tokens that were chosen after them. Out: phases, steps and an outcome, as ``generate()`` has
them. Errors of ours and wrong use inside the block cost telemetry only and are logged once; the exceptions of the loop pass.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch import Tensor

from inferspan import semconv
from inferspan.capture import recording
from inferspan.capture.call import Call, current, loop_by_hand, step_by_hand
from inferspan.capture.chat import chat_of
from inferspan.capture.compile.transforms import is_capturing
from inferspan.capture.compile.watch import compiling
from inferspan.capture.failures import error_type
from inferspan.capture.forward import close_stale
from inferspan.capture.generate.arguments import features_of
from inferspan.capture.generate.step_log import StepLog
from inferspan.capture.target import Target
from inferspan.guard import contain, read_attribute
from inferspan.records import Failure
from inferspan.setting_checks import warn_once

from .outcome import Facts, describe_outcome
from .passes import RootPasses
from .prompt import Prompt, as_tensor
from .tokens import ChosenTokens, Misuse, end_tokens, ids_of

__all__ = ["Generation"]

class Pass:
    """The block around a forward pass."""

    __slots__ = ("_generation", "_inputs", "_opened", "_prefill")

    def __init__(self, generation: Generation, inputs: Any, *, prefill: bool) -> None:
        self._generation, self._inputs, self._prefill = generation, inputs, prefill
        self._opened = False

    def __enter__(self) -> None:
        with contain("start of a step"):
            self._opened = self._generation._begin_pass(self._inputs, prefill=self._prefill)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._opened:
            self._generation._end_pass(error)


class Generation:
    """One generation of a loop by hand: see :func:`inferspan.program.blocks.generation`.

    Args:
        owner: instrumentation of the model.
        model: the module; ``None`` for another engine.
        prompt: what is known of it.
        tokenizer: has the end token, and decodes content.
        max_new_tokens: limit of the loop.
        hold: called when it begins; returns what is called when it has ended.
    """

    def __init__(
        self,
        owner: Target,
        model: Any,
        prompt: Prompt,
        *,
        tokenizer: Any,
        max_new_tokens: int | None,
        hold: Callable[[], Callable[[], None]],
    ) -> None:
        self._owner, self._model, self._prompt = owner, model, prompt
        self._tokenizer = owner.tokenizer if tokenizer is None else tokenizer
        self._max_new_tokens = max_new_tokens
        self._hold = hold
        self._release: Callable[[], None] | None = None
        self._request: recording.Request | None = None
        self._state = "new"
        self._chat: Any = None
        self._passes: RootPasses | None = None
        self._open_pass = False
        self._before: tuple[Call | None, Call | None, bool] = (None, None, False)
        self._loop_before: Call | None = None
        self._in_generator = False
        """Whether the block is in a generator, whose context is that of its reader: there the request is current inside of passes only."""
        self._length: int | None = None
        """Positions of a row so far, the chosen tokens included."""
        self._without_logits = False
        inner = read_attribute(model, "_orig_mod", model)
        configurations = (read_attribute(inner, name) for name in ("generation_config", "config"))
        self._tokens = ChosenTokens(end_tokens(*configurations, self._tokenizer))

    # ----------------------------------------------------------------------------------------------------------- the user
    def __enter__(self) -> Generation:
        if self._state != "new":
            _misused("one generation was entered twice: call inferspan.generation() for each")
            return self
        self._state = "open"
        self._in_generator = bool(sys._getframe(1).f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR))
        with contain("start of a generation"):
            self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._state == "open":
            self._end(semconv.FINISH_STOP, error)

    def prefill(self, inputs: Any = None) -> Pass:
        """Around the forward pass of the prompt, or around each part of it.

        Args:
            inputs: tensor or array ``[rows, positions, ...]`` that goes in; needed only where the model is not a module that is called as a
                whole, for the shape on the step's span.
        """
        return Pass(self, inputs, prefill=True)

    def step(self, inputs: Any = None) -> Pass:
        """Around each further forward pass.

        Args:
            inputs: as for ``prefill``.
        """
        return Pass(self, inputs, prefill=False)

    def token(self, logits: Any, token: Any) -> None:
        """Tell of the token that was chosen after a forward pass.

        Args:
            logits: the raw logits that it was chosen from, ``[rows, vocabulary]`` or ``[rows, positions, vocabulary]``, of which the last
                position counts (of one row also ``[vocabulary]``): a tensor or an array of numpy; ``None`` if there are none.
            token: its id, or one for each row as list, tensor or array ``[rows]`` or ``[rows, 1]``; -1 for a row that has ended before.
        """
        if self._state == "open" and self._request is not None:
            with contain("token of a generation"):
                try:
                    self._choose(self._request, logits, token)
                except Misuse as error:
                    _misused(str(error))

    def finish(self, reason: str | list[str] = semconv.FINISH_STOP) -> None:
        """End the generation; its time ends here.

        Args:
            reason: why rows ended that had no end token: ``stop``, ``length`` or a text of your own; or a list with one for each row.
        """
        if self._state == "ended":
            _misused("finish() was called twice: the first call counts")
        elif self._state == "new":
            _misused("finish() was called outside of the block of a generation")
        else:
            self._end(reason, None)

    # ---------------------------------------------------------------------------------------------------------- the start
    def _begin(self) -> None:
        self._release = self._hold()
        compiling.listen()
        close_stale(None)
        given, owner = self._prompt.arguments, self._owner
        given = features_of(given, self._model)
        self._chat = chat_of(self._model, given.input_ids, given.inputs)
        # Copies, because a loop may go on with the same tensors.
        ids, mask = given.input_ids, given.attention_mask
        self._prompt = self._prompt._replace(
            arguments=given._replace(
                input_ids=ids.clone() if isinstance(ids, Tensor) else ids, attention_mask=mask.clone() if isinstance(mask, Tensor) else mask
            )
        )
        operation = semconv.OPERATION_TEXT_COMPLETION
        if self._chat is not None:
            operation = semconv.OPERATION_CHAT
        elif given.media:
            operation = semconv.OPERATION_GENERATE_CONTENT
        request = recording.start(
            "generate", owner, operation=owner.settings.operation or operation, root=self._model, bound=False, info=owner.info
        )
        if not isinstance(request, recording.Request):
            return
        try:
            if self._in_generator:
                request.scope.detach()
            else:
                self._loop_before = loop_by_hand.get()
                loop_by_hand.set(request)
                request.scope.enter()
            request.adapter = self._passes = RootPasses(request.steps)
            request.begin_phase(semconv.SPAN_PREFILL, at=request.start, then=semconv.SPAN_DECODE)
        except BaseException as error:
            request.scope.leave()
            request.fail(error)
            raise
        self._request = request

    # ------------------------------------------------------------------------------------------------------------- passes
    def _begin_pass(self, inputs: Any, *, prefill: bool) -> bool:
        request, passes = self._request, self._passes
        if request is None or passes is None or self._state != "open":
            if self._state != "open":
                place = "after the end of" if self._state == "ended" else "outside"
                _misused(f"{'prefill' if prefill else 'step'}() was used {place} its block")
            return False
        if self._open_pass:
            _misused("a step was begun inside a step: the inner one is not recorded, and its passes belong to the outer one")
            return False
        steps = request.steps
        if prefill and self._tokens.steps:
            _misused("prefill() was used after the first token: use step()")
        main = None if inputs is None else as_tensor(inputs)
        steps.prepare()
        passes.main = main if main is not None and main.dim() >= 2 else None
        self._open_pass = passes.in_step = True
        before = current.call
        # Where tasks may take turns inside the block, the pass is found by its context.
        pushed = asyncio._get_running_loop() is None
        self._before = (before, step_by_hand.get(), pushed)
        step_by_hand.set(request)
        if pushed:
            current.call = request
        if self._in_generator:
            request.scope.attach()
            request.scope.enter()
        with contain("start of a step"):
            steps.begin()
        return True

    def _end_pass(self, error: BaseException | None = None) -> None:
        request, passes = self._request, self._passes
        if not self._open_pass or request is None or passes is None:
            return
        self._open_pass = passes.in_step = False
        self._leave_thread(request)
        with contain("end of a step"):
            steps = request.steps
            main, passes.main = passes.main, None
            if not steps.open:  # token() was called inside the block
                return
            if error is not None:
                request.end_step(failure=Failure(error_type(error), "", ""))
                return
            self._end_step(steps, main)

    def _leave_thread(self, request: recording.Request) -> None:
        before, outer, pushed = self._before
        self._before = (None, None, False)
        if self._in_generator:
            request.scope.leave()
        if step_by_hand.get() is request:
            step_by_hand.set(outer)
        if pushed:
            call = current.call
            while call is not None and call is not request:
                call = call.outer
            if call is request:
                # Ends what an interrupt has left open inside.
                request.pop(request.steps.now())
                current.call = before

    # ------------------------------------------------------------------------------------------------------------- tokens
    def _choose(self, request: recording.Request, logits: Any, token: Any) -> None:
        steps = request.steps
        now = steps.now()
        ids = ids_of(token)
        if not isinstance(logits, Tensor) and getattr(logits, "ndim", 0) == 3:
            logits = logits[:, -1:]
        values = as_tensor(logits)
        if values is not None and values.dim() == 1:
            values = values.unsqueeze(0)
        if logits is not None and (values is None or values.dim() not in (2, 3)):
            raise Misuse("token() takes logits as a tensor or array [rows, vocabulary] or [rows, positions, vocabulary], or None")
        if ids.is_cuda and is_capturing():
            return
        if steps.open:
            # It was chosen inside the block of its pass.
            self._end_step(steps, None if self._passes is None else self._passes.main)
        if not steps.index:
            _misused("token() was called before the first pass: put `with g.prefill():` around the forward pass of the prompt")
        if steps.awaiting:
            steps.token_known(now)
        marked = self._tokens.add(ids)
        if self._tokens.steps == 1:
            self._note_prompt(request)
        if self._length is not None:
            self._length += 1
        if values is not None:
            values = values if values.dim() == 3 else values.unsqueeze(1)
            steps.logits = steps.rows.add_logits(steps.index - 1, values)
            if marked.device != values.device:
                marked = marked.to(values.device, non_blocking=True)
        else:
            self._without_logits = True
        steps.choose(now, marked, self._length or 0)

    def _end_step(self, steps: StepLog, main: Tensor | None) -> None:
        if self._tokens.steps == 0:
            steps.end(None, main)
            steps.cached += 0 if main is None else int(main.shape[1])
        else:
            # Without the length of the prompt that of the sequence is not known either.
            steps.end(None, None if self._length is None else main)

    def _note_prompt(self, request: recording.Request) -> None:
        """The first token: the length of the prompt, and the rows that will run, are known."""
        steps = request.steps
        self._length = steps.cached or self._prompt.width
        if not self._tokens.rows_end:
            steps.rows.running = self._tokens.rows

    # ---------------------------------------------------------------------------------------------------------------- end
    def _end(self, reason: str | list[str], error: BaseException | None) -> None:
        request, self._state = self._request, "ended"
        try:
            if request is not None:
                self._finish(request, reason, None if error is None else request.failure_of(error))
        finally:
            self._request = self._passes = None
            self._prompt = Prompt()
            release, self._release = self._release, None
            if release is not None:
                with contain("end of a generation"):
                    release()

    def _finish(self, request: recording.Request, reason: str | list[str], failure: Failure | None) -> None:
        outcome = recording.Outcome(failure=failure)
        # An interrupt that arrives in here must not leave the span open or its context attached.
        try:
            # A step that is still open ends first: it lies in the request.
            self._end_pass()
            end = request.steps.now()
            request.close(failure, at=end)
            with contain("end of a generation"):
                outcome = describe_outcome(self._facts(request), reason, failure)
        finally:
            if loop_by_hand.get() is request:
                loop_by_hand.set(self._loop_before)
            self._loop_before = None
            request.scope.leave()
            request.finish(outcome)

    def _facts(self, request: recording.Request) -> Facts:
        steps, passes = request.steps, self._passes
        return Facts(
            owner=self._owner,
            prompt=self._prompt,
            chat=self._chat,
            tokenizer=self._tokenizer,
            tokens=self._tokens,
            first=None if passes is None else passes.first,
            cache=None if passes is None else passes.cache,
            reused=None if passes is None else passes.reused,
            positions=steps.cached or None,
            steps=steps.index,
            max_new_tokens=self._max_new_tokens,
            without_logits=self._without_logits and steps.statistics is not None,
        )


def _misused(text: str) -> None:
    """Log wrong use inside a block, each kind once."""
    warn_once("inferspan.generation(): %s; your program is not affected", text)
