"""The adapter of transformers' ``generate()``: it translates a decoding loop into phases, steps and an outcome.

Tokens are counted in the returned sequences. The boundaries: a step begins when its inputs are prepared and ends when the forward call
returns; a token counts as known when the loop comes back from its stop check, which on CUDA has waited for the device.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from inferspan import semconv
from inferspan.capture import recording
from inferspan.capture.chat import chat_of
from inferspan.capture.compile.state import set_eval_frame
from inferspan.capture.compile.transforms import is_capturing
from inferspan.capture.compile.watch import compiling
from inferspan.capture.failures import error_type
from inferspan.capture.forward import close_stale
from inferspan.capture.owner import Owner
from inferspan.capture.passes.pipelines import SPEAKING, pipeline_task
from inferspan.capture.values.unseen import hidden, unseen
from inferspan.guard import contain, read_attribute, read_attributes
from inferspan.records import Failure

from .arguments import Arguments, PassEnd, drafts_tokens, features_of, main_input
from .criteria import observe_criteria
from .modalities import makes_media
from .outcome import cache_hit, describe_outcome, reused_tokens
from .pass_shapes import note_cache
from .passes import RootPasses
from .run import Run
from .tokens import Loop, sequences_of, token_ids

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
        ordinary: whether all facts of the running loop are known and each pass is a step of one token a row.
        cache: the cache of keys and values that the last pass returned.
        fresh: whether a forward pass has returned since the criteria were asked last.
        passes: of the root that no helper announces.
        deferred: logits and input of a step that ends when its tokens are chosen, because the model may run again until then.
    """

    __slots__ = (
        "cache",
        "deferred",
        "fresh",
        "inputs",
        "main_key",
        "ordinary",
        "owner",
        "passes",
        "request",
        "run",
        "steps",
    )

    def __init__(self, request: recording.Request, owner: Owner, run: Run) -> None:
        self.request = request
        self.owner = owner
        self.run = run
        self.steps = request.steps
        self.inputs: Any = None
        self.main_key: str | None = None
        self.cache: Any = None
        self.ordinary = False
        self.fresh = False
        self.deferred: tuple[Any, Any] | None = None
        self.passes = RootPasses(request, prompt=run.prompt(owner.model), reused=run.reused or 0)

    @property
    def awaits_loop(self) -> bool:
        """Whether the caller has passed a loop of their own, which has run no step: a ``generate()`` of the model is that loop then."""
        return "custom_generate" in self.run.arguments.names and not (self.steps.index or self.steps.open)

    # -------------------------------------------------------------------------------------------------- the loop's events
    def begin_loop(self, config: Any, criteria: Any) -> Any:
        """A decoding loop is about to run with its final configuration; returns criteria that report each choice."""
        run, steps = self.run, self.steps
        if not run.loops:
            run.config = config
        run.drafted = run.drafted or drafts_tokens(config)
        self.passes.drafting = run.drafted and self.steps.statistics is not None
        eos, pad, beams, returned, max_length, guidance = read_attributes(
            config, "eos_token_id", "pad_token_id", "num_beams", "num_return_sequences", "max_length", "guidance_scale"
        )
        ends, known = token_ids(eos)
        loop = Loop(
            eos=ends,
            pad=pad if isinstance(pad, int) else next(iter(token_ids(pad)[0] or ends), None),
            beams=beams or 1,
            returned=returned or 1,
            max_length=max_length,
            assisted=run.drafted,
        )
        run.loops.append(loop)
        run.guided = run.guided or guidance not in (None, 1)
        self.ordinary = steps.uniform = False
        steps.chunked = read_attribute(run.config, "prefill_chunk_size") is not None
        observed = observe_criteria(criteria, loop, self.choose)
        loop.custom = loop.custom or not known
        return observed

    def look_at_inputs(self) -> None:
        """Find the main input of the open step, whose end is not observed."""
        inputs, self.inputs = self.inputs, None
        if self.deferred is not None:
            self.steps.main, self.deferred = self.deferred[1], None
            return
        self.main_key, self.steps.main = main_input(inputs)

    def end_pass(self, logits: Any, main: Any, end: PassEnd) -> None:
        """A forward pass of a loop has returned that is not known, or not ordinary.

        Args:
            logits: that it has returned, if any.
            main: its main input.
            end: further facts of it.
        """
        run = self.run
        if run.guided:
            self._defer(logits, main)
        else:
            self.steps.end(logits, main)
        if run.drafted and run.drafts.verified is None:
            # The loop holds them until its next pass as well.
            run.drafts.verified = logits
        self._look_at_pass(end)

    def _defer(self, logits: Any, main: Any) -> None:
        """A forward pass has returned, after which the model may run again for the same step."""
        statistics = self.steps.statistics
        self.deferred = (None if statistics is None else statistics.last_position(logits), main)

    def _look_at_pass(self, end: PassEnd) -> None:
        """Collect facts of the loop from a pass."""
        run = self.run
        loop = run.loops[-1] if run.loops else None
        self._note_cache(loop)
        if loop is None or not end.outputs:
            return
        if loop.prompt_width is None:
            # The criteria will see the prompt and this many new tokens; before transformers 5 a tensor, which is read once a loop.
            loop.width = int(end.new_tokens) if isinstance(end.new_tokens, int | Tensor) else 1
        if isinstance(end.new_tokens, int | Tensor):
            loop.assisted = run.drafted = True
        if not loop.mask_seen:
            loop.mask_seen = True
            loop.attention_mask = end.attention_mask if isinstance(end.attention_mask, Tensor) else None
        self._settle(loop)

    def _note_cache(self, loop: Loop | None) -> None:
        """Note the shapes of the cache, at the first passes of a loop and at the end: they decide what attention takes."""
        roofline = self.request.roofline
        if roofline is not None and (loop is None or loop.prompt_width is None):
            with contain("roofline"):
                note_cache(roofline.facts, self.cache)
                # Passes of a draft that was refused, and those without the prompt, are not told of; an encoder may have run before.
                others = self.run.drafted or self.run.guided or "encoder_outputs" in self.run.arguments.names
                roofline.facts.hidden = roofline.facts.hidden or others
                if loop is not None:
                    roofline.facts.copies = max(1, loop.beams, loop.returned)

    def _settle(self, loop: Loop) -> None:
        """Decide whether steps of the loop may be alike from now on."""
        self.steps.uniform = loop.mask_seen and loop.prompt_width is not None and not loop.assisted and not self.run.drafted
        self.ordinary = self.steps.uniform and self.passes.helped and not self.run.guided

    def _note_rows(self, loop: Loop) -> None:
        """Note which rows run in each step, or that this has to be looked at in each."""
        loop.rows_end = loop.beams == 1 and (loop.rows or 1) > 1 and (loop.custom or bool(loop.eos))
        rows = self.steps.rows
        rows.running = None
        if loop.beams == 1 and not loop.rows_end and len(self.run.loops) == 1:
            rows.running = loop.rows
        elif self.steps.statistics is None:
            loop.rows_end = False

    def choose(self, loop: Loop, input_ids: Any, done: Any) -> None:
        """The loop has chosen the tokens of a step and asked whether to stop."""
        steps = self.steps
        now = steps.now()
        shape = input_ids.shape
        width = shape[1]
        if self.ordinary and self.fresh and not (steps.open or loop.rows_end) and width - (loop.width or 0) == 1:
            # The same as below, in fewer instructions.
            self.fresh = False
            if steps.awaiting:
                steps.token_known(now)
            loop.width = width
            if loop.custom:
                loop.note_decision(done)
            steps.choose(now, input_ids if loop.beams == 1 else None, width + steps.without_ids)
            return
        # Older assisted loops ask the criteria about mere candidates as well; only the question after a pass is about tokens.
        fresh, self.fresh = self.fresh or self.passes.fresh, False
        self.passes.fresh = False
        if not fresh and self.run.drafted:
            return
        # The wrappers that call prepare() and end() may have been removed in mid-run.
        if self.deferred is not None:
            (logits, main), self.deferred = self.deferred, None
            steps.end(logits, main)
        elif steps.open:
            self.look_at_inputs()
            steps.close(now, (), None)
        elif not fresh and not self.owner.is_open:
            self.run.unseen += 1
        if steps.awaiting and width != loop.width:
            steps.token_known(now)
        before = loop.width
        if loop.prompt_width is None:
            # The width of the prompt comes last: after an interrupt before it no token counts, and after it the other two are known.
            before, loop.rows, loop.width = width - (loop.width or 1), shape[0], width
            loop.prompt_width = before
            self._note_rows(loop)
            if steps.length is None and steps.embedded:
                steps.without_ids = max(0, steps.embedded - loop.prompt_width)
            self._settle(loop)
        loop.width = width
        if loop.custom:
            loop.note_decision(done)
        ids = input_ids if loop.beams == 1 else None
        if loop.assisted:
            steps.token_counts.append(width - (before or 0))
            self.run.drafts.choose(steps, input_ids, before or 0, width)
        elif before is not None and width - before > 1:
            # A loop of the user's own takes several tokens a step.
            self.run.drafts.unplaced, steps.logits = True, None
        elif loop.rows_end and not (input_ids.is_cuda and is_capturing()):
            ids = loop.mark_ended(input_ids, done)
            if steps.logits is not None and steps.logits.device != ids.device:
                ids = ids.to(steps.logits.device, non_blocking=True)
        steps.choose(now, ids, width + steps.without_ids)

    def enter_root(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The root is called, and no helper has announced it. Contains errors of its own."""
        if not self.passes.inside and (not self.owner.is_open or (self.passes.helped and not self.fresh)):
            # Uninstrumented, and perhaps instrumented again, since the loop was seen last.
            return
        evaluator = set_eval_frame(None)
        try:
            loops = self.run.loops
            self.passes.enter(args, kwargs, told=bool(loops) and loops[-1].prompt_width is not None)
            self.run.guided = self.run.guided or self.passes.guided
            self.ordinary = self.ordinary and not self.run.guided
        finally:
            set_eval_frame(evaluator)

    def leave_root(self, output: Any) -> None:
        """That call of the root has ended; torch calls this in its except block after an exception, without an output."""
        evaluator, error = set_eval_frame(None), sys.exc_info()[1]
        try:
            self.passes.leave(output, error_type(error) if error is not None and output is None else None)
            if self.passes.cache is not None:
                self.cache = self.passes.cache
        finally:
            set_eval_frame(evaluator)

    def keep_logits(self, output: Any) -> None:
        """An announced pass of the root has returned ``output``, and its raw logits are wanted. Contains errors of its own."""
        with contain("drafted tokens"), unseen():
            drafts = self.run.drafts
            if not drafts.seen and not drafts.width:
                drafts.width = self.run.prompt(self.owner.model) or 0
            drafts.keep(output)

    def compiles(self) -> None:
        """A compiled forward pass will be used from the first decode step on (and for chunks of the prompt)."""
        self.run.compiled = self.request.compiled = self.steps.modules.compiled = True
        with contain("compiled call"):
            self.owner.pause_root_hooks(self.request)
            if getattr(self.run.config, "prefill_chunk_size", None) is not None:
                self.steps.modules.release()

    # ------------------------------------------------------------------------------------------------------------- end
    def fail(self, error: BaseException) -> None:
        """End the request with the exception that passes through; not twice."""
        if not self.request.ended:
            self._end(None, self.request.failure_of(error))

    def finish(self, result: Any) -> None:
        """End the request with the result of ``generate()``."""
        self._end(result, None)

    @hidden
    def _end(self, result: Any, failure: Failure | None) -> None:
        outcome = recording.Outcome(failure=failure)
        # An interrupt that arrives in here must not leave the span open or its context attached.
        try:
            end = self.steps.now()
            with contain("end of generate()"):
                if self.steps.open:
                    self.look_at_inputs()
            if self.run.drafts.seen and failure is None:
                with contain("drafted tokens"):
                    self.run.drafts.settle(sequences_of(result))
            self._note_cache(None)
            self.request.close(failure, at=end)
            with contain("end of generate()"):
                outcome = describe_outcome(
                    self.run,
                    self.owner,
                    result,
                    failure,
                    cache=self.cache,
                    logits=self.steps.statistics is not None,
                    steps=self.steps.index,
                    by_passes=self.passes.used,
                )
        finally:
            self.run, self.inputs, self.deferred, self.cache = Run(Arguments()), None, None, None
            self.passes.drop()
            self.request.finish(outcome)


def _operation(arguments: Arguments, chat: object, *, makes_media: bool) -> str:
    if chat is not None:
        return semconv.OPERATION_CHAT
    return semconv.OPERATION_GENERATE_CONTENT if arguments.media or makes_media else semconv.OPERATION_TEXT_COMPLETION


@hidden
def start_generate(owner: Owner, model: Any, arguments: Arguments) -> GenerateCall | None:
    """Open the request of a ``generate()``, or ``None`` where telemetry stays out."""
    compiling.listen()
    close_stale(None)
    arguments = features_of(arguments, model)
    chat = chat_of(model, arguments.input_ids, arguments.inputs)
    task = pipeline_task()
    operation = owner.settings.operation or _operation(arguments, chat, makes_media=makes_media(model) or task in SPEAKING)
    run = Run(arguments, chat=chat if owner.content else None, reused=reused_tokens(arguments.caches), drafted=arguments.assisted)
    facts: dict[str, Any] = {} if task is None else {semconv.PIPELINE_TASK: task}
    if (hit := cache_hit(arguments.caches)) is not None:
        facts[semconv.KV_CACHE_HIT] = hit
    request = recording.start(
        "generate",
        owner,
        operation=operation,
        root=model,
        cached=run.reused or 0,
        streamer=arguments.streamer,
        info=owner.info_with(arguments.adapters),
        **facts,
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
