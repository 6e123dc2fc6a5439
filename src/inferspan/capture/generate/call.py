"""The adapter of transformers' ``generate()``: it translates a decoding loop into phases, steps and an outcome.

Tokens are counted in the returned sequences. The boundaries: a step begins when its inputs are prepared and ends when the forward call
returns; a token counts as known when the loop comes back from its stop check, which on CUDA has waited for the device.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from inferspan import semconv
from inferspan.capture import recording
from inferspan.capture.chat import chat_of
from inferspan.capture.compile.watch import compiling
from inferspan.capture.forward import close_stale
from inferspan.capture.owner import Owner
from inferspan.guard import contain
from inferspan.records import Failure

from .arguments import Arguments, PassEnd, features_of, main_input
from .criteria import observe_criteria
from .outcome import Run, describe_outcome, reused_tokens
from .tokens import Loop, sequences_of

__all__ = ["GenerateCall", "start_generate"]


class GenerateCall:
    """A running ``generate()``. Wrappers and criteria call its methods and those of ``steps``, and contain their errors.

    Args:
        request: records it.
        owner: instrumentation of the model.
        run: facts of it, collected while it runs.

    Attributes:
        steps: the step log of the request.
        inputs: inputs of the open forward pass, until the main one has been found.
        main_key: name of the main input among those of the last forward pass.
        known: whether the facts of the running loop are complete, so that passes need not be read any more.
        fresh: whether a forward pass has returned since the criteria were asked last.
    """

    __slots__ = ("_inner_depth", "fresh", "inputs", "known", "main_key", "owner", "request", "run", "steps")

    def __init__(self, request: recording.Request, owner: Owner, run: Run) -> None:
        self.request = request
        self.owner = owner
        self.run = run
        self.steps = request.steps
        self.inputs: Any = None
        self.main_key: str | None = None
        self.known = False
        self.fresh = False
        self._inner_depth = 0

    # ---------------------------------------------------------------------------------------- generating models inside ours
    def enter_inner(self, arguments: Arguments) -> None:
        """A generating model inside ours starts its own ``generate()``: it belongs to this request."""
        self._inner_depth += 1
        if self._inner_depth == 1:
            self.run.inner_arguments.append(arguments)

    def leave_inner(self, result: Any) -> None:
        """The inner ``generate()`` has returned."""
        self._inner_depth -= 1
        sequences = sequences_of(result)
        if self._inner_depth == 0 and sequences is not None:
            self.run.inner_results.append(sequences)

    # -------------------------------------------------------------------------------------------------- the loop's events
    def begin_loop(self, config: Any, criteria: Any) -> Any:
        """A decoding loop is about to run with its final configuration; returns criteria that report each choice."""
        run, steps = self.run, self.steps
        if not run.loops:
            run.config = config
        run.drafted = run.drafted or bool(getattr(config, "prompt_lookup_num_tokens", None))
        eos = getattr(config, "eos_token_id", None)
        pad = getattr(config, "pad_token_id", None)
        loop = Loop(
            eos=frozenset(eos if isinstance(eos, list | tuple) else () if eos is None else (eos,)),
            pad=pad if isinstance(pad, int) else (next(iter(eos), None) if isinstance(eos, list | tuple) else eos),
            beams=getattr(config, "num_beams", 1) or 1,
            returned=getattr(config, "num_return_sequences", 1) or 1,
            max_length=getattr(config, "max_length", None),
        )
        run.loops.append(loop)
        self.known = steps.uniform = False
        steps.chunked = getattr(run.config, "prefill_chunk_size", None) is not None
        return observe_criteria(criteria, loop, self.choose)

    def look_at_inputs(self) -> None:
        """Find the main input of the open step, whose end is not observed."""
        inputs, self.inputs = self.inputs, None
        self.main_key, self.steps.main = main_input(inputs)

    def look_at_pass(self, end: PassEnd) -> None:
        """A forward pass has returned: collect facts of the loop from it."""
        run = self.run
        loop = run.loops[-1] if run.loops else None
        if loop is None or not end.outputs:
            return
        if loop.prompt_width is None:
            # The criteria will see the prompt and this many new tokens; before transformers 5 a tensor, which is read once a loop.
            loop.width = int(end.new_tokens) if isinstance(end.new_tokens, int | Tensor) else 1
        if isinstance(end.new_tokens, Tensor) or (isinstance(end.new_tokens, int) and end.new_tokens != 1):
            loop.assisted = True
        if not loop.mask_seen:
            loop.mask_seen = True
            loop.attention_mask = end.attention_mask if isinstance(end.attention_mask, Tensor) else None
        self._settle(loop)

    def _settle(self, loop: Loop) -> None:
        """Decide whether steps of the loop may be alike from now on."""
        self.known = loop.mask_seen and loop.prompt_width is not None
        self.steps.uniform = self.known and not loop.assisted and not self.run.drafted

    def choose(self, loop: Loop, input_ids: Any, done: Any) -> None:
        """The loop has chosen the tokens of a step and asked whether to stop."""
        steps = self.steps
        now = steps.now()
        # Older assisted loops ask the criteria about mere candidates as well; only the question after a pass is about tokens.
        fresh, self.fresh = self.fresh, False
        if not fresh and self.run.drafted:
            return
        shape = input_ids.shape
        width = shape[1]
        # The wrappers that call prepare() and end() may have been removed in mid-run.
        if steps.open:
            self.look_at_inputs()
            steps.close(now, (), None)
        if steps.awaiting and width != loop.width:
            steps.token_known(now)
        if loop.prompt_width is None:
            loop.prompt_width = width - (loop.width or 1)
            loop.rows = shape[0]
            if steps.length is None and steps.embedded:
                steps.without_ids = max(0, steps.embedded - loop.prompt_width)
            self._settle(loop)
        loop.width = width
        if loop.custom:
            loop.note_decision(done)
        if loop.assisted:
            # A pass has the logits of several tokens, and which of them was the last is not known.
            steps.logits = None
        steps.choose(now, input_ids if loop.beams == 1 else None, width + steps.without_ids)

    def compiles(self) -> None:
        """A compiled forward pass will be used from the first decode step on (and for chunks of the prompt)."""
        self.run.compiled = self.request.compiled = self.steps.modules.compiled = True
        with contain("compiled call"):
            self.owner.pause_root_hooks(self.request)
            if getattr(self.run.config, "prefill_chunk_size", None) is not None:
                self.steps.modules.release()

    # ------------------------------------------------------------------------------------------------------------- end
    def fail(self, error: BaseException) -> None:
        """End the request with the exception that passes through."""
        self._end(None, self.request.failure_of(error))

    def finish(self, result: Any) -> None:
        """End the request with the result of ``generate()``."""
        self._end(result, None)

    def _end(self, result: Any, failure: Failure | None) -> None:
        outcome = recording.Outcome(failure=failure)
        # An interrupt that arrives in here must not leave the span open or its context attached.
        try:
            with contain("end of generate()"):
                if self.steps.open:
                    self.look_at_inputs()
            self.request.close(failure)
            with contain("end of generate()"):
                outcome = describe_outcome(self.run, self.owner, result, failure, logits=self.steps.statistics is not None)
        finally:
            self.run, self.inputs = Run(Arguments()), None
            self.request.finish(outcome)


def _operation(arguments: Arguments, chat: object) -> str:
    if chat is not None:
        return semconv.OPERATION_CHAT
    return semconv.OPERATION_GENERATE_CONTENT if arguments.media else semconv.OPERATION_TEXT_COMPLETION


def start_generate(owner: Owner, model: Any, arguments: Arguments) -> GenerateCall | None:
    """Open the request of a ``generate()``, or ``None`` where telemetry stays out."""
    compiling.listen()
    close_stale(None)
    arguments = features_of(arguments, model)
    chat = chat_of(model, arguments.input_ids, arguments.inputs)
    operation = owner.settings.operation or _operation(arguments, chat)
    run = Run(arguments, chat=chat if owner.content else None, reused=reused_tokens(arguments.caches), drafted=arguments.assisted)
    request = recording.start(
        "generate",
        owner,
        operation=operation,
        root=model,
        cached=run.reused or 0,
        streamer=arguments.streamer,
        info=owner.info_with(arguments.adapters),
    )
    if not isinstance(request, recording.Request):
        return None
    try:
        call = request.adapter = GenerateCall(request, owner, run)
        request.begin_phase(semconv.SPAN_PREFILL, at=request.start, then=semconv.SPAN_DECODE)
    except BaseException as error:
        request.fail(error)
        raise
    return call
