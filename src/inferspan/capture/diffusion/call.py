"""The adapter of diffusion pipelines: it translates a pipeline's call into stages, denoising steps and an outcome.

A denoising step begins with the first pass of the denoiser after the step before, and ends when the scheduler has taken its result: passes
of guidance and of a second denoiser belong to it. Where no pass is seen, because the denoiser is compiled, it begins where the last one
ended. Stages are components that run before, after and between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from inferspan import semconv
from inferspan.attribute_values import shape_attributes
from inferspan.capture import recording
from inferspan.capture.failures import error_type
from inferspan.capture.modules.shapes import describe
from inferspan.capture.patching import Undo
from inferspan.guard import contain
from inferspan.records import AttributeValue, Failure

from .blocks import Blocks, frames_of
from .outcome import describe_outcome

__all__ = ["DiffusionCall"]


class DiffusionCall:
    """A running call of a pipeline. Wrappers and hooks call its methods and contain their errors.

    Args:
        request: records it.
        arguments: of the call, by name.
        scheduler: of the pipeline.
        undo: takes hooks and wrappers off the components.
    """

    __slots__ = (
        "_arguments", "_block", "_blocks", "_decoder", "_depth", "_open", "_seen", "_steps", "_timesteps", "_undo", "request", "scheduler",
    )  # fmt: skip

    def __init__(self, request: recording.Request, arguments: Mapping[str, Any], scheduler: Any, undo: Undo) -> None:
        self.request = request
        self.scheduler = scheduler
        self._undo = undo
        self._arguments = arguments
        self._timesteps: list[tuple[dict[str, AttributeValue], Any]] = []
        """Attributes of each step, and its timestep, which may still be on the device."""
        self._open = False
        """Whether a component runs that is a stage."""
        self._depth = 0
        self._steps = 0
        self._block: dict[str, AttributeValue] = {}
        """Attributes of the loop that runs."""
        self._blocks: list[int] = []
        """When the last step of each loop ended."""
        self._seen = request.start
        """When the last step or stage ended."""
        self._decoder = Blocks(request)

    # ------------------------------------------------------------------------------------------------------------ stages
    def begin_stage(self, name: str, inputs: Any) -> None:
        """A component is called that is a stage; one inside it belongs to it."""
        self._depth += 1
        if self._depth > 1:
            return
        self._open = True
        self.request.begin_stage(name, attributes=self._shapes(inputs, semconv.INPUT_SHAPES, semconv.INPUT_DTYPES))
        if name == semconv.STAGE_VAE_DECODE:
            self._decoder.open()

    def end_stage(self, output: Any, error: BaseException | None) -> None:
        """That component has returned or raised."""
        self._depth -= 1
        if self._depth or not self._open:
            return
        self._open = False
        self._seen = self.request.steps.now()
        failure = None if error is None else Failure(error_type(error), "", "")
        attributes = self._shapes(output, semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES)
        if self._decodes:
            with contain("blocks of a stage"):
                attributes |= {**frames_of(output), **self._decoder.close()}
        self.request.end_phase(failure, attributes=attributes)

    @property
    def _decodes(self) -> bool:
        return self.request.phases.name == semconv.STAGE_VAE_DECODE

    def begin_block(self, inputs: Any) -> None:
        """The decoder of an autoencoder is called: for all, or for a tile, a slice or a batch of frames."""
        if self._decodes and self._decoder.begin():
            self._decoder.describe(self._shapes(inputs, semconv.INPUT_SHAPES, semconv.INPUT_DTYPES))

    def end_block(self, output: Any, error: BaseException | None) -> None:
        """It has returned or raised."""
        if self._decodes and self._decoder.end():
            attributes = {**self._shapes(output, semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES), **frames_of(output)}
            self._decoder.add(None if error is None else error_type(error), attributes)

    @staticmethod
    def _shapes(tensors: Any, shapes: str, dtypes: str) -> dict[str, AttributeValue]:
        with contain("shapes of a stage"):
            return shape_attributes(describe(tensors), shapes, dtypes)
        return {}

    # ------------------------------------------------------------------------------------------------------------- steps
    def enter_denoiser(self) -> None:
        """The denoiser is called."""
        if not self._depth and not self.request.steps.open:
            self._denoise(None)
            self.request.begin_step()

    def _denoise(self, at: int | None) -> None:
        """Begin the stage of the steps, unless it runs."""
        request = self.request
        if request.phases.name != semconv.STAGE_DENOISE:
            self._block = {semconv.DENOISE_BLOCK: len(self._blocks)}
            self._blocks.append(request.start)
            request.begin_stage(semconv.STAGE_DENOISE, at=at, attributes=self._block)

    def end_step(self, timestep: Any, sample: Any, result: Any) -> None:
        """The scheduler has taken the prediction of a step.

        Args:
            timestep: number, or tensor that may be on the device; it is read when the request has ended.
            sample: what went into the step.
            result: what the scheduler has returned.
        """
        request = self.request
        number = request.steps.index
        if request.steps.open:
            request.end_step()
        else:
            # A compiled denoiser: nothing has told of its pass.
            self._denoise(self._seen)
            request.steps.last = self._seen
            request.steps.end(None)
        attributes: dict[str, AttributeValue] = {semconv.DENOISE_INDEX: self._steps}
        self._steps += 1
        if isinstance(timestep, int | float):
            attributes[semconv.DENOISE_TIMESTEP] = float(timestep)
        elif isinstance(timestep, Tensor) and timestep.numel() == 1:
            self._timesteps.append((attributes, timestep))
        given = shape_attributes(describe(sample), semconv.INPUT_SHAPES, semconv.INPUT_DTYPES)
        made = shape_attributes(describe(result), semconv.OUTPUT_SHAPES, semconv.OUTPUT_DTYPES)
        attributes |= {**given, **made}
        if semconv.OUTPUT_SHAPES not in self._block:
            self._block |= given
        self._block |= made
        if isinstance(sample, Tensor) and sample.dim():
            attributes[semconv.STEP_ROWS] = int(sample.shape[0])
        request.steps.rows.add_attributes(number, attributes)
        self._seen = request.steps.now()
        if self._blocks:
            self._blocks[-1] = self._seen

    def end_loop(self) -> None:
        """Another loop of steps will begin."""
        request = self.request
        if request.phases.name == semconv.STAGE_DENOISE:
            request.end_phase()
            self._seen = request.steps.now()

    def _read_timesteps(self) -> None:
        """Take the numbers of the steps; the pipeline has waited for the device, or its caller will."""
        waiting, self._timesteps = self._timesteps, []
        if waiting:
            values = torch.stack([one.detach().reshape(()).to(torch.float64) for _, one in waiting]).tolist()
            for (attributes, _), value in zip(waiting, values, strict=True):
                attributes[semconv.DENOISE_TIMESTEP] = value

    # --------------------------------------------------------------------------------------------------------------- end
    def fail(self, error: BaseException) -> None:
        """End the request with the exception that passes through; not twice."""
        if not self.request.ended:
            self._end(None, self.request.failure_of(error))

    def finish(self, result: Any) -> None:
        """End the request with the result of the pipeline."""
        self._end(result, None)

    def _end(self, result: Any, failure: Failure | None) -> None:
        outcome = recording.Outcome(failure=failure, unseen_steps=None)
        # An interrupt that arrives in here must not leave the span open or its context attached.
        try:
            end = self.request.steps.now()
            self._undo.close()
            if self.request.recording:
                with contain("numbers of denoising steps"):
                    self._read_timesteps()
            self.request.close(failure, at=end)
            with contain("blocks of a stage"):
                self._decoder.add_records()
            with contain("end of a pipeline call"):
                seconds = sum(map(sum, self.request.steps.seconds.values()))
                took = (end - self.request.start) / 1e9
                outcome = describe_outcome(
                    self._arguments, self.scheduler, result, failure, steps=self._steps, denoising=seconds, seconds=took,
                    blocks=[(at - self.request.start) / 1e9 for at in self._blocks],
                )  # fmt: skip
        finally:
            self._arguments, self._timesteps = {}, []
            self.request.finish(outcome)
