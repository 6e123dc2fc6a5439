"""One ``generate()``: its phases, steps, tokens and end, collected while the decoding loop runs.

On the model's path a step costs a few clock readings and appends. Statistics of the logits are launched on the device and read at
the end. Tokens are counted from what was returned. The boundaries: a step begins when its inputs are prepared and ends when the forward
call returns; a token counts as known when the loop comes back from its stop check, which on CUDA has waited for the device.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

from torch import Tensor

from inferspan import semconv
from inferspan.capture.call import Call
from inferspan.capture.compile.state import compiled_graphs
from inferspan.capture.compile.transforms import is_capturing
from inferspan.capture.device.memory import MemoryMeter
from inferspan.capture.failures import failure_of
from inferspan.capture.logits.ring import LogitRing
from inferspan.capture.logits.statistics import StepLogits, whole_logits
from inferspan.capture.modules.shapes import Described, describe, describe_like
from inferspan.capture.owner import Owner
from inferspan.guard import contain, report
from inferspan.records import Failure, Phase, RequestEnd, Step

from .criteria import observe_criteria
from .end import MAX_TOKENS_IN_ARRAYS, describe_end, kv_cache_bytes, reused_tokens
from .step_attributes import StepFacts, StepRow
from .tokens import Loop, sequences_of

__all__ = ["GenerateCall"]

LIVE = 512
"""Steps that are kept before they are handed over while the request still runs."""
ROW_BYTES = 550
"""Statistics of one row of a step's logits as Python numbers."""
LIVE_CALLS = 4096
"""Module calls for which the same holds."""
MOST_LIVE = 8 * LIVE
"""Steps that are kept at most before their statistics are waited for."""
_MAIN_INPUTS = ("decoder_input_ids", "input_ids", "decoder_inputs_embeds", "inputs_embeds")
_DECODE = semconv.SPAN_DECODE
SIZE = Step._field_defaults["size"]
_get: Callable[[Any, str], Any] = dict.get
"""The base class's own: a subclass may have put side effects into its overrides."""


class _Pattern:
    """What was seen of a decode step, for the next ones: a step like it is noted in few instructions."""

    __slots__ = ("cache_key", "dtype", "input_dtype", "input_key", "input_shape", "inputs", "kind", "outputs", "shape", "width")

    def __init__(self, outputs: dict[str, Any], given: dict[str, Any], input_key: str) -> None:
        self.kind = type(outputs)
        self.cache_key = "cache" if "cache" in outputs else "past_key_values"
        self.shape: Any = None
        """Of logits of one position per row; ``None`` if no statistics are taken of any."""
        self.dtype: Any = None
        self.input_key = input_key
        main = given[input_key]
        self.input_shape, self.input_dtype, self.width = main.shape, main.dtype, int(main.shape[1])
        self.inputs: Described = ()
        self.outputs: Described = ()


class GenerateCall(Call):
    """State of one running ``generate()``."""

    # What each step reads or writes, side by side: in a dictionary of a hundred entries each of them is a cache miss.
    __slots__ = (
        "all_steps",
        "awaiting",
        "budget",
        "cache",
        "decode_seconds",
        "decode_steps",
        "drafted",
        "first_token",
        "fresh",
        "hooked",
        "index",
        "last",
        "length",
        "logits",
        "measured",
        "most_steps",
        "next_sampled",
        "overhead",
        "part",
        "pattern",
        "recording",
        "ring",
        "root_id",
        "slots",
        "step_given",
        "step_open",
        "step_start",
        "steps_kept",
        "target",
        "token_times",
        "without_ids",
    )

    def __init__(self, target: Owner, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.target = target
        self.engine = target.engine
        self.root_id = id(model)
        self.arguments = dict(kwargs)
        if args:
            self.arguments.setdefault("inputs", args[0])
        if len(args) > 1:
            self.arguments.setdefault("generation_config", args[1])
        self.loops: list[Loop] = []
        self.config: Any = None
        self.inner_depth = 0
        self.inner_arguments: list[dict[str, Any]] = []
        self.inner_results: list[Tensor] = []
        self.reused = reused_tokens(self.arguments)
        self.cache: Any = None
        self.cache_bytes: int | None = None
        # clock
        self.last = self.start
        self.step_open = False
        self.step_start = self.start
        self.step_given: Any = None
        self.step_inputs: Described = ()
        self.step_outputs: Described = ()
        self.pattern: _Pattern | None = None
        """Of the last step, if the next one is likely to be like it."""
        self.length: int | None = None
        self.cached = self.reused or 0
        """Tokens of a row that are in the cache before the pass, until the first token."""
        self.embedded = 0
        """Positions of a row of the prompt, if the first pass took embeddings."""
        self.without_ids = 0
        """Those that the loop has no ids of."""
        self.index = 0
        self.decode_steps = 0
        self.first_token: int | None = None
        self.awaiting = False
        self.fresh = False
        self.drafted = self.arguments.get("assistant_model") is not None
        self.token_times = array("q")
        self.decode_seconds = array("d")
        self.seconds = {semconv.SPAN_PREFILL: array("d"), semconv.SPAN_DECODE: self.decode_seconds}
        # detail
        self.logits: Tensor | None = None
        self.ring = (
            LogitRing(top_k=target.settings.top_k if target.ids_on_spans else 0, capacity=1 << 20)
            if self.recording and target.settings.logits
            else None
        )
        self.vocabulary = 0
        self.sharded = False
        self.slot_base = 0
        self.slot_logits: list[StepLogits] = []
        """Statistics that have come to the host, from slot ``slot_base`` on."""
        self.steps_kept: list[StepRow] = []
        self.slots: dict[int, int] = {}
        """Where the statistics of their logits will be found, by number of the step."""
        self.live_calls = 0
        self.most_steps = LIVE
        self.noted = 0
        self.noted_index = 0
        self.logprobs: list[float] = []
        self.entropies: list[float] = []
        self.top1_probabilities: list[float] = []
        self.nonfinite: dict[tuple[str, str], int] = {}
        self.every_step = target.settings.every_step
        self.all_steps = target.steps_wanted == "all"
        self.next_sampled = 0
        self.hooked = False
        self.refused = 0
        """Module spans of the coming step for which there is no room."""
        self.compiled = False
        self.module_count = target.engine.expected
        self.memory: MemoryMeter | None = None
        with contain("memory reading"):
            self.memory = MemoryMeter(target.device)
        with contain("size of the vocabulary"):
            self.vocabulary = target.sharded_vocabulary()
        self.energy = target.new_energy_meter()
        self.warmup = target.first_call
        self.graphs = compiled_graphs()
        if self.recording:
            target.engine.prepare()
            self.module_count = target.engine.expected
            self.output_stats = target.new_output_stats()
            self.clock = target.new_device_clock()
            self._sample_modules(0)

    # ------------------------------------------------------------------------------------------------- who belongs here
    def follows(self, module: object) -> bool:
        """Whether ``module`` is the model of this call, or a generating model inside it."""
        return id(module) == self.root_id or id(module) in self.target.members

    def is_root(self, module: object) -> bool:
        """Whether ``module`` is the very object whose ``generate()`` this is, outside of an inner one."""
        return id(module) == self.root_id

    def enter_inner(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A generating model inside ours starts its own ``generate()``: it belongs to this request."""
        self.inner_depth += 1
        if self.inner_depth == 1:
            arguments = dict(kwargs)
            if args:
                arguments.setdefault("inputs", args[0])
            self.inner_arguments.append(arguments)

    def leave_inner(self, result: Any) -> None:
        """The inner ``generate()`` has returned."""
        self.inner_depth -= 1
        sequences = sequences_of(result)
        if self.inner_depth == 0 and sequences is not None:
            self.inner_results.append(sequences)

    # ------------------------------------------------------------------------------------------------- the loop's events
    def begin_loop(self, args: tuple[Any, ...], kwargs: dict[str, Any], criteria: Any) -> Any:
        """A decoding loop is about to run with its final configuration; returns the criteria that report to us."""
        config = kwargs.get("generation_config", args[0] if args else None)
        self.config = config if self.config is None or not self.loops else self.config
        self.drafted = self.drafted or bool(getattr(config, "prompt_lookup_num_tokens", None))
        eos = getattr(config, "eos_token_id", None)
        pad = getattr(config, "pad_token_id", None)
        self.pattern = None
        self.loops.append(
            Loop(
                eos=frozenset(eos if isinstance(eos, list | tuple) else () if eos is None else (eos,)),
                pad=pad if isinstance(pad, int) else (next(iter(eos), None) if isinstance(eos, list | tuple) else eos),
                beams=getattr(config, "num_beams", 1) or 1,
                returned=getattr(config, "num_return_sequences", 1) or 1,
                max_length=getattr(config, "max_length", None),
            )
        )
        return observe_criteria(criteria, self.loops[-1], self)

    def before_step(self) -> None:
        """The loop prepares its next forward pass, so it has seen the previous token."""
        now = perf_counter_ns()
        if self.step_open:
            # Chunked prefill runs several passes before the first token; the next one's preparation ends the last.
            given = self.step_given
            self._close_step(now, (), None)
            if self.length is None and getattr(self.config, "prefill_chunk_size", None) is not None:
                self.cached += self._look_at_inputs(given)[1] or 0
            self.overhead += perf_counter_ns() - now
        if self.awaiting:
            if self.first_token is None:
                self._token_known(now)
            else:
                self.awaiting = False
                self.token_times.append(now)
        self.last = now

    def begin_step(self, inputs: Any) -> None:
        """Inputs are prepared; the forward pass starts."""
        began = perf_counter_ns()
        if self.part is not None:
            with contain("profiler window"):
                self.part.begin()
        # Looked at once the pass has been launched.
        self.step_given = inputs
        if self.hooked and self.recorded:
            # What ran before the first pass, such as an encoder, hangs under the phase.
            self._flush_modules(None, perf_counter_ns(), None)
            self._reopen_modules()
        clock = self.clock
        if clock is not None:
            budget = self.budget
            if self.hooked or self.index == 0 or (self.all_steps and (budget.spent < budget.soft or budget.keeps_next_step)):
                clock.begin()
        now = perf_counter_ns()
        self.overhead += now - began
        self.step_start = now
        self.step_open = True

    def end_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The forward pass has returned its outputs."""
        now = perf_counter_ns()
        clock = self.clock
        if clock is not None:
            clock.end()
        self.fresh = True
        try:
            pattern = self.pattern
            if pattern is None or not self.step_open or "num_new_tokens" in kwargs or not self._is_like(pattern, now, args):
                self._end_step(now, args, kwargs)
        except Exception as error:
            report("end of a step", error)
        if clock is not None:
            # The loop has waited for the device before this step, which now has work again.
            clock.read_some()
        self.last = now
        self.overhead += perf_counter_ns() - now

    def choose(self, loop: Loop, input_ids: Any, done: Any) -> None:
        """The loop has chosen the tokens of a step and asked whether to stop."""
        now = perf_counter_ns()
        # Older assisted loops ask the criteria about mere candidates as well; only the question after a pass is about tokens.
        fresh, self.fresh = self.fresh, False
        if not fresh and self.drafted:
            return
        shape = input_ids.shape
        width = shape[1]
        # The wrappers that tell these may have been taken off in mid-run.
        if self.step_open:
            self._close_step(now, (), None)
        if self.awaiting and width != loop.width:
            self._token_known(now)
        if loop.prompt_width is None:
            loop.prompt_width = width - (loop.width or 1)
            loop.rows = shape[0]
            if self.length is None and self.embedded:
                self.without_ids = max(0, self.embedded - loop.prompt_width)
        loop.width = width
        self.length = width + self.without_ids
        if loop.custom:
            loop.note_decision(done)
        logits = self.logits
        if logits is not None:
            self.logits = None
            try:
                self._append_logits(logits, input_ids, loop)
            except Exception as error:
                report("logit statistics", error)
        self.awaiting = True
        self.last = perf_counter_ns()
        self.overhead += self.last - now

    def compiles(self) -> None:
        """A compiled forward pass will be used from the first decode step on (and for chunks of the prompt)."""
        self.compiled = True
        with contain("compiled call"):
            self.target.pause_root_hooks(self)
            if getattr(self.config, "prefill_chunk_size", None) is not None:
                self._release_modules()

    # ------------------------------------------------------------------------------------------------------- internals
    def _token_known(self, now: int) -> None:
        self.awaiting = False
        if self.first_token is None:
            self.first_token = now
            if self.clock is not None:
                self.clock.anchor()
        self.token_times.append(now)

    def _phase(self) -> str:
        return semconv.SPAN_PREFILL if self.first_token is None else semconv.SPAN_DECODE

    def _is_like(self, pattern: _Pattern, now: int, args: tuple[Any, ...]) -> bool:
        """Note the end of a step that is like the last one; false, and nothing has changed, if it is not.

        It does what ``_end_step`` does, for steps without modules in the middle of a request. What may fail comes first.
        """
        outputs = args[0] if 0 < len(args) < 4 else None
        given = self.step_given
        if type(outputs) is not pattern.kind or type(given) is not dict:
            return False
        main = given.get(pattern.input_key)
        if type(main) is not Tensor or main.dtype is not pattern.input_dtype or main.shape != pattern.input_shape:
            return False
        if pattern.shape is not None:
            logits = _get(outputs, "logits")
            if type(logits) is not Tensor or logits.dtype is not pattern.dtype or logits.shape != pattern.shape:
                return False
            self.logits = logits
        kept = self.recording and self.budget.take_step()
        index = self.index
        self.cache = _get(outputs, pattern.cache_key)
        self.index = coming = index + 1
        self.step_open = False
        self.step_given = None
        self.decode_steps += 1
        start = self.step_start
        self.decode_seconds.append((now - start) / 1e9)
        self.measured = measured = None if self.clock is None else self.clock.end_pass(wanted=kept)
        if kept:
            steps = self.steps_kept
            steps.append(
                (index, start, now, _DECODE, None, pattern.inputs, pattern.outputs, pattern.width, self.length or 0, None, measured)
            )
            if len(steps) > self.most_steps:
                self._hand_over_some_steps()
        if self.recording and (coming == self.next_sampled or self.target.windows.active):
            self.pattern = None
            self._sample_modules(coming)
        return True

    def _end_step(self, now: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        outputs = args[0] if args else kwargs.get("outputs")
        model_kwargs = args[1] if len(args) > 1 else kwargs.get("model_kwargs")
        new_tokens = kwargs.get("num_new_tokens", args[3] if len(args) > 3 else None)
        if not self.step_open:
            self.step_start = self.last
        given, self.pattern = self.step_given, None
        self._look_at_outputs(outputs, model_kwargs, new_tokens)
        self._close_step(now, self._describe_logits() if self.logits is not None and self.recording else (), None)
        self.pattern = self._pattern_of(outputs, given)

    def _pattern_of(self, outputs: Any, given: Any) -> _Pattern | None:
        """What the step that has just ended has in common with those that follow, if they are to be expected."""
        loop = self.loops[-1] if self.loops else None
        unlike = self.hooked or self.refused or self.every_step or self.part is not None or self.vocabulary
        if unlike or (self.recording and not self.all_steps) or self.first_token is None or self.length is None:
            return None
        if loop is None or loop.assisted or self.drafted or loop.prompt_width is None or not loop.mask_seen:
            return None
        key = _main_key(given)
        if key is None or type(given) is not dict or not isinstance(outputs, dict):
            return None
        pattern = _Pattern(outputs, given, key)
        pattern.inputs = self.step_inputs = describe_like(self.step_inputs, (given[key],))
        if self.logits is not None:
            if self.logits.dim() != 3:
                return None
            pattern.shape, pattern.dtype, pattern.outputs = self.logits.shape, self.logits.dtype, self.step_outputs
        elif self.ring is not None:
            return None
        return pattern

    def _look_at_outputs(self, outputs: Any, model_kwargs: Any, new_tokens: Any) -> None:
        if not isinstance(outputs, dict):
            return
        self.cache = _get(outputs, "cache" if "cache" in outputs else "past_key_values")
        loop = self.loops[-1] if self.loops else None
        if loop is not None:
            if loop.prompt_width is None:
                # The criteria will see the prompt and this many new tokens; before transformers 5 a tensor, which is read once a loop.
                loop.width = int(new_tokens) if isinstance(new_tokens, int | Tensor) else 1
            if isinstance(new_tokens, Tensor) or (isinstance(new_tokens, int) and new_tokens != 1):
                loop.assisted = True
            if not loop.mask_seen and isinstance(model_kwargs, dict):
                loop.mask_seen = True
                mask = model_kwargs.get("attention_mask")
                loop.attention_mask = mask if isinstance(mask, Tensor) else None
        if self.ring is not None and self.target.steps_wanted:
            logits = _get(outputs, "logits")
            if logits is not None and (type(logits) is not Tensor or self.vocabulary):
                logits = whole_logits(logits, vocabulary=self.vocabulary)
                self.sharded = self.sharded or logits is None
            if type(logits) is Tensor and logits.dim() == 3 and logits.is_floating_point():
                shape = logits.shape
                if 0 not in shape:
                    # A view of a whole prompt's logits would keep them alive longer than the loop does.
                    self.logits = logits if shape[1] == 1 else logits.narrow(1, shape[1] - 1, 1).clone()

    def _append_logits(self, logits: Tensor, input_ids: Tensor, loop: Loop) -> None:
        steps, number = self.steps_kept, self.index - 1
        if self.ring is None or loop.assisted or not steps or steps[-1][0] != number or number in self.slots:
            return
        slot = self.ring.append_last(logits, input_ids if loop.beams == 1 else None)
        if slot is not None:
            self.slots[number] = slot

    def _close_step(self, now: int, outputs: Described, failure: str | None) -> None:
        if self.part is not None:
            if self.clock is not None:
                self.clock.end()
            with contain("profiler window"):
                self.part.end(now)
        profiled = self.part is not None and self.part.holds_events
        phase = self._phase()
        index = self.index
        self.index += 1
        self.step_open = False
        given, self.step_given = self.step_given, None
        if phase == semconv.SPAN_DECODE:
            self.decode_steps += 1
        self.seconds[phase].append((now - self.step_start) / 1e9)
        if not self.recording:
            return
        wanted = profiled or self.target.steps_wanted == "all"
        wanted = wanted or (self.target.steps_wanted == "sampled" and (self.hooked or self.refused > 0))
        kept = False
        # On its own, so that the modules of this step are not taken for those of a later one.
        try:
            kept = wanted and self.budget.take_step(wanted=profiled)
        except Exception as error:
            report("end of a step", error)
        if self.refused:
            self.budget.leave_out(self.refused)
        self.measured = None
        if self.hooked:
            self._flush_modules(index if kept else None, now, failure)
        elif profiled:
            self.close_modules(index if kept else None, phase, now, failure)
        elif self.clock is not None:
            self.measured = self.clock.end_pass(wanted=kept)
        if kept:
            inputs, width = self._look_at_inputs(given)
            length = self.length
            if length is None:
                length = (self.cached if self.first_token is None else 0) + (width or 0)
                self.embedded = length if inputs and inputs[0][1].is_floating_point else 0
            more = self.part.attributes if profiled and self.part is not None else None
            self.steps_kept.append((index, self.step_start, now, phase, failure, inputs, outputs, width, length, more, self.measured))
        if self.hooked or self.every_step or index + 1 == self.next_sampled or self.part is not None or self.target.windows.active:
            self._sample_modules(index + 1)
        else:
            self.room = self.refused = 0
        if len(self.steps_kept) > self.most_steps:
            self._hand_over_some_steps()
        elif self.live_calls >= LIVE_CALLS:
            self._hand_over_modules()

    def _hand_over_some_steps(self) -> None:
        self._hand_over_steps(len(self.steps_kept) - 1, wait=len(self.steps_kept) > MOST_LIVE)
        # Those whose statistics are still on the device come with the next ones.
        self.most_steps = len(self.steps_kept) + LIVE

    def _describe_logits(self) -> Described:
        """Shape and type of the logits of one position, in most steps those of the last one."""
        logits = self.logits
        if logits is None:
            return ()
        rows, _, vocabulary = logits.shape
        known = self.step_outputs
        if not known or known[0][0] != (rows, vocabulary) or known[0][1] is not logits.dtype:
            self.step_outputs = describe(logits.select(1, -1))
        return self.step_outputs

    def _look_at_inputs(self, given: Any) -> tuple[Described, int | None]:
        """Shapes of what goes into the forward pass, and how many positions per row it holds."""
        try:
            key = _main_key(given)
            if key is None:
                return (), None
            main = given.get(key)
            self.step_inputs = describe_like(self.step_inputs, (main,))
            return self.step_inputs, int(main.shape[1])
        except Exception as error:
            report("end of a step", error)
            return (), None

    def _sample_modules(self, index: int) -> None:
        """Decide whether the step ``index`` is recorded with its modules, and attach or detach hooks for it."""
        target = self.target
        if self.part is None and target.windows.active:
            self.part = target.windows.claim(first_call=self.warmup)
        profiled = self.part is not None and self.part.due
        wanted = target.engine.expected > 0 and (self.every_step or profiled or index == self.next_sampled)
        if index == self.next_sampled:
            self.next_sampled = max(1, index * 2)
            if self.memory is not None:
                self.memory.look()
        if (self.compiled and index > 0) or not target.is_open:
            wanted = False
        opened = wanted and self.open_modules(self.module_count, whole=True)
        # Left out only if the step comes to be.
        self.refused = self.module_count if wanted and not opened else 0
        if not opened:
            self._release_modules()
        elif not self.hooked:
            target.engine.acquire()
            self.hooked = True

    def _release_modules(self) -> None:
        self.room = 0
        if self.hooked:
            self.hooked = False
            self.target.engine.release()

    def _flush_modules(self, step: int | None, now: int, failure: str | None) -> None:
        self.module_count = max(self.recorded + self.missed, 1)
        began = self.step_start if step is not None else self.first_token or self.start
        if self.begun_before(began):
            # Our wrappers were off for a while, so what was recorded meanwhile has no place.
            self.discard()
        self.live_calls += self.recorded
        self.close_modules(step, self._phase(), now, failure)

    def _hand_over_modules(self) -> None:
        """Give away the module calls of all passes but the newest, which the device may still be at; their steps follow."""
        with contain("hand-over of modules"):
            self.live_calls = 0
            if self.clock is not None:
                self.clock.read()
            newest = self.pending[-1:]
            del self.pending[-1:]
            self.hand_over()
            self.pending += newest

    def _reopen_modules(self) -> None:
        if self.hooked:
            self.open_modules(self.target.engine.expected, whole=False)

    def _hand_over_steps(self, count: int, *, wait: bool, last: bool = False) -> None:
        """Give the first ``count`` kept steps, with their statistics, to the recorder; the last ones go at the end.

        Without ``wait`` only those go that have their statistics by now.
        """
        with contain("hand-over of steps"):
            if self.ring is not None:
                with contain("logit statistics"):
                    if wait:
                        self.slot_logits.extend(self.ring.read())
                    elif not is_capturing():
                        self.slot_logits.extend(self.ring.landed())
                if not wait:
                    count = self._steps_with_logits(count)
            self.pending.extend(self._records(self.steps_kept[:count]))
            del self.steps_kept[:count]
            done = min([len(self.slot_logits), *(slot - self.slot_base for slot in self.slots.values())])
            del self.slot_logits[:done]
            self.slot_base += done
            if not last:
                if self.clock is not None:
                    self.clock.read(leave=len(self.steps_kept))
                self.hand_over()

    def _steps_with_logits(self, count: int) -> int:
        """How many of the first ``count`` kept steps wait for no statistics."""
        known = self.slot_base + len(self.slot_logits)
        late = (index for index, kept in enumerate(self.steps_kept[:count]) if self.slots.get(kept[0], -1) >= known)
        return next(late, count)

    def _records(self, steps: list[StepRow]) -> list[Step]:
        """Records of steps, with the statistics of their logits where there are any."""
        ids = self.target.ids_on_spans
        decode = self.target.decode_token if ids else None
        offset, base, known = self.offset, self.slot_base, self.slot_logits
        records = []
        for kept in steps:
            logits, size = None, SIZE
            place = self.slots.pop(kept[0], base - 1) - base
            if 0 <= place < len(known):
                logits = known[place]
                size += ROW_BYTES * logits.rows_kept
                if kept[0] == self.noted_index:
                    self.noted_index += 1
                    self._note_logits(logits)
            facts = StepFacts(kept, logits, content=ids, decode=decode)
            records.append(Step(kept[0], kept[3], kept[1] + offset, kept[2] + offset, kept[4], facts, size))
        return records

    def _note_logits(self, values: StepLogits) -> None:
        counts = values.counts
        if counts != (0, 0):
            for kind, count in zip(("nan", "inf"), counts, strict=True):
                if count:
                    self.nonfinite["logits", kind] = self.nonfinite.get(("logits", kind), 0) + count
        noted = self.noted
        self.noted = noted + 1
        if noted >= MAX_TOKENS_IN_ARRAYS:
            return
        entropy, top1, logprob = values.confidence
        # An array with holes cannot be told from a shorter one, so both end at the first step that has no value or was thinned out.
        if entropy is not None and len(self.entropies) == noted:
            self.entropies.append(entropy)
            if top1 is not None and self.target.settings.entropy_metric:
                self.top1_probabilities.append(top1)
        if logprob is not None and len(self.logprobs) == noted:
            self.logprobs.append(logprob)

    # ------------------------------------------------------------------------------------------------------------- end
    def fail(self, error: BaseException) -> None:
        """End the request with the exception that passes through."""
        failure = Failure(type(error).__name__, "", "")
        with contain("end of generate()"):
            failure = failure_of(error, content=self.target.settings.content_on_spans)
        self._end(None, failure)

    def finish(self, result: Any) -> None:
        """End the request with what ``generate()`` returned."""
        self._end(result, None)

    def _end(self, result: Any, failure: Failure | None) -> None:
        now = perf_counter_ns()
        end = RequestEnd(self.epoch(now), failure, {})
        # An interrupt that arrives in here must not leave the span open or its context attached.
        try:
            self.pop(now)
            with contain("end of generate()"):
                self._close_open(now, failure)
            if self.clock is not None:
                self.clock.anchor()
            with contain("end of generate()"):
                if self.cache is not None:
                    self.cache_bytes = kv_cache_bytes(self.cache)
                end = describe_end(self, result, failure, now)
            with contain("device clock"):
                end = self._with_device_times(end)
            with contain("hand-over of generate()"):
                self.hand_over()
        finally:
            try:
                with contain("end of generate()"):
                    self._release_modules()
                self._let_go()
                self.target.closed(self)
            finally:
                self.scope.end(end)

    def _close_open(self, now: int, failure: Failure | None) -> None:
        kind = failure.type if failure is not None else None
        # Each on its own, so that no child is handed over without its parent.
        with contain("end of generate()"):
            if self.awaiting:
                self._token_known(now)
        with contain("end of generate()"):
            if self.step_open or self.open_calls:
                self._close_step(now, (), kind or "_OTHER")
        decoded = self.first_token is not None and (self.decode_steps > 0 or failure is not None)
        with contain("end of generate()"):
            if self.recorded and self.recording:
                self.close_modules(None, semconv.SPAN_DECODE if decoded else semconv.SPAN_PREFILL, now, kind)
        self._hand_over_steps(len(self.steps_kept), wait=True, last=True)
        if self.recording:
            first = self.first_token if self.first_token is not None else now
            self.pending.append(
                Phase(semconv.SPAN_PREFILL, self.epoch(self.start), self.epoch(first), kind if self.first_token is None else None, {})
            )
            if decoded:
                self.pending.append(Phase(semconv.SPAN_DECODE, self.epoch(first), self.epoch(now), kind, {}))

    def _with_device_times(self, end: RequestEnd) -> RequestEnd:
        """Put the device's time on the phases and on the request, as far as it is known: the loop has waited for most of it."""
        clock = self.clock
        if clock is None:
            return end
        clock.read(leave=0)
        last = clock.anchors - 1
        spans = {semconv.SPAN_PREFILL: (0, 1), semconv.SPAN_DECODE: (1, last)}
        for place, record in enumerate(self.pending):
            if isinstance(record, Phase):
                seconds = clock.between(*spans[record.name])
                if seconds is not None:
                    self.pending[place] = record._replace(attributes={**record.attributes, semconv.DEVICE_TIME: seconds})
        whole = clock.between(0, last)
        return end if whole is None else replace(end, attributes={**end.attributes, semconv.DEVICE_TIME: whole})

    def _let_go(self) -> None:
        """Drop every tensor and event, so that nothing depends on when this object is collected."""
        if self.clock is not None:
            with contain("device clock"):
                self.clock.close()
        if self.part is not None:
            with contain("profiler window"):
                self.part.release()
        self.logits = self.cache = self.ring = self.output_stats = self.energy = self.step_given = None
        self.arguments = {}
        self.inner_arguments, self.inner_results, self.loops = [], [], []


def _main_key(inputs: Any) -> str | None:
    """The name, among the inputs of a forward pass, of the tensor whose second dimension is that of the positions."""
    if not isinstance(inputs, dict):
        return None
    for key in _MAIN_INPUTS:
        value = inputs.get(key)
        if isinstance(value, Tensor) and value.dim() >= 2:
            return key
    return None

