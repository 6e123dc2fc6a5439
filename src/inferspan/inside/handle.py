"""The part of a handle that looks inside its model: settings that change while the program runs.

In: calls of the program. Out: settings of the model's instrumentation, which all handles of the model share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inferspan import composition
from inferspan.capture.attention.results import Attention
from inferspan.capture.gradients.figures import Gradients
from inferspan.capture.inside.results import ModuleResult, NumericsVerdict, TopLogits, WeightsVerdict
from inferspan.data_flow.flow import DataFlow
from inferspan.setting_checks import fail
from inferspan.settings import Settings
from inferspan.summaries.activations import Activations
from inferspan.summaries.memory import MemoryCall, MemoryFigures, memory_figures

if TYPE_CHECKING:
    from inferspan.capture.inside.functions import ModuleFunction

__all__ = ["InsideHandle"]


def flow_of(engine: Any, settings: Settings, title: str, step: int | None) -> DataFlow:
    """The data flow of a step of the latest request, or the reason why there is none."""
    passes = engine.flows.passes()
    chosen = [one for one in passes if step is None or one.step == step]
    if chosen:
        return DataFlow(chosen[0], title)
    if settings.data_flow == "none":
        reason = "the setting data_flow is none"
    elif passes:
        known = ", ".join(str(one.step) for one in passes)
        reason = f"step {step} was not recorded with its modules; recorded were {known}"
    elif not engine.expected:
        reason = f"no module can be observed: {engine.unobserved or 'the setting modules selects none'}"
    else:
        reason = "no request has been recorded with its modules so far"
    return DataFlow(None, title, [reason])


class InsideHandle:
    """Base of ``Handle``."""

    _instrumentation: Any
    _recorder: Any
    _functions: tuple[ModuleFunction, ...] = ()
    _settings: Settings

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        instrumentation = self._instrumentation
        found: Settings = self._settings if instrumentation is None else instrumentation.settings
        return found

    def set(self, **settings: Any) -> None:
        """Change settings from the next request on, for all handles of the model; requests that run keep theirs.

        ``docs/settings.md`` says which settings can change. Where nothing is attached (``enabled=False``, or after ``uninstrument()``) only
        the values are checked.

        Args:
            **settings: single settings, as for ``instrument()``.

        Raises:
            SettingsError: a setting is unknown, wrong or cannot change at run time, or a pattern matches no module. All settings stay as
                they were then.
        """
        instrumentation = self._instrumentation
        if instrumentation is None:
            self._settings = self._settings.switched(settings)
        else:
            instrumentation.switch(settings)

    def activations(self, module: str = "*") -> Activations:
        """Shapes of the recorded modules, and with ``output_stats`` figures of their outputs: of all calls, of the last one, and a history.

        In the order of the model, for calls that were recorded as spans; ``print()`` shows a line for each module with four decimals.
        Figures are of the first floating point tensor of an output and its finite values; std is the population's. At most 4,000 modules.

        Args:
            module: path of a module, or a glob.
        """
        if self._recorder is None:
            return Activations(())
        composition.hand_over()
        wanted = self._wanted(module)
        return Activations(row for row in self._recorder.recording.modules() if wanted(row.name))

    def numerics(self) -> NumericsVerdict:
        """Whether outputs of modules had NaN or Inf in the requests so far, and where first; needs the setting ``numerics``.

        With ``numerics_inputs`` it has the same of their inputs.
        """
        instrumentation = self._instrumentation
        if instrumentation is None:
            return NumericsVerdict()
        found: NumericsVerdict = instrumentation.target.engine.inside.verdict()
        return found

    def memory(self) -> MemoryFigures:
        """Peak of the run, and the modules with the most memory in the requests so far; needs the setting ``memory``.

        ``print()`` shows five modules by each of three rankings, with the number of readings. On a CPU model there is no allocator to ask:
        the peak is that of the resident memory of the process, and modules have no figures.
        """
        instrumentation = self._instrumentation
        if instrumentation is None:
            return MemoryFigures()
        found = instrumentation.target.engine.inside.memory.figures()
        figures = memory_figures(found["device"], found["peak"], found["steps"], found["modules"], found["shortages"])
        return replace(figures, calls=tuple(MemoryCall(*call) for call in found["calls"]))

    def gradients(self) -> Gradients:
        """Figures of the gradients of modules in the backward passes so far; needs the setting ``gradients``. Waits for the device.

        In the order of the forward pass, after a row for the output of the model. The gradient of an input is what the module alone adds to
        it, where the tensor has other uses as well. At most 4,000 modules.
        """
        instrumentation = self._instrumentation
        if instrumentation is None:
            return Gradients()
        composition.hand_over()
        found: Gradients = instrumentation.target.engine.inside.passes.gradients.gradients()
        return found

    def data_flow(self, step: int | None = None) -> DataFlow:
        """Which module's output fed which module's input in the latest request; needs the setting ``data_flow``.

        Args:
            step: number of a step that was recorded with its modules, one of the first 16; default: the first one.

        Returns:
            Edges with shapes, dtypes and bytes; ``print()`` shows them, ``to_json()``, ``to_dot()`` and ``to_svg()`` draw them. Without
            any if nothing was recorded: its ``notes`` say why.
        """
        instrumentation = self._instrumentation
        if instrumentation is None:
            return DataFlow(None, notes=["nothing is instrumented"])
        target = instrumentation.target
        return flow_of(target.engine, instrumentation.settings, target.info.name or target.info.architecture, step)

    def top_logits(self) -> list[TopLogits]:
        """The largest raw logits of every row and position in the latest 1,000 passes of requests that have ended, the newest last.

        Needs ``top_k_positions="all"`` and content capture.
        """
        instrumentation = self._instrumentation
        return [] if instrumentation is None else list(instrumentation.target.engine.inside.top_logits)

    def check_weights(self, module: str = "*") -> WeightsVerdict:
        """Look for NaN, Inf and values near the limit of their dtype in parameters and buffers now; waits for the device.

        Needs no setting. Of a distributed tensor the local part is looked at.

        Args:
            module: path of a module, parameter or buffer, or a glob.
        """
        if self._instrumentation is None:
            return WeightsVerdict()
        from inferspan.capture.inside.weights import check_weights

        return check_weights(self._instrumentation.target.model, module)

    def attention(self, module: str = "*") -> Attention:
        """Attention weights in figures, of the requests so far; needs the setting ``attention``.

        ``layers`` has a row for each layer that gave weights, with figures for each head, ``missing`` those that gave none with the
        reason, ``calls`` the latest 1,024 calls; ``print()`` shows a line for each layer.

        Args:
            module: path of a layer, or a glob.
        """
        instrumentation = self._instrumentation
        if instrumentation is None:
            return Attention()
        found: Attention = instrumentation.target.engine.inside.attention.watch.result(self._wanted(module))
        return found

    def _wanted(self, module: str) -> Callable[[str], bool]:
        """Whether a path is meant, or another one of the same module."""
        from inferspan.capture.modules.patterns import glob_of

        return glob_of(None if self._instrumentation is None else self._instrumentation.target.model, module)

    def on_module(self, pattern: Any, fn: Callable[..., Any], when: str = "after") -> ModuleFunction:
        """Run a function at each call of some modules, in every step of recorded requests, from the next one on.

        ``fn(module, args, kwargs, output, name)`` gets the module, its positional and keyword arguments, its output (``None`` with
        ``when="before"``) and its path. The mapping that it returns becomes attributes of the call's span and an entry of
        ``module_results()``; ``None`` is no result. Tensors in it are read when the request ends. What it returns never replaces an
        output, what it raises is contained, logged once and counted, and modules that it calls are not observed. It runs without
        gradients. A pattern that matches nothing is a warning.

        Args:
            pattern: one entry of the setting ``modules``: a path or glob, ``re:``, the name of a class, a class, or a function of path
                and module.
            fn: the function.
            when: ``before`` or ``after``.

        Returns:
            An object with ``remove()``, and with the number of calls, errors and seconds.

        Raises:
            SettingsError: an argument cannot be used.
        """
        from inferspan.capture.inside.functions import ModuleFunction
        from inferspan.setting_checks import modules

        pattern = modules("pattern of on_module", [pattern])[0]
        if not callable(fn):
            raise fail("fn of on_module", fn, "use a function of module, args, kwargs, output and name")
        if when not in ("before", "after"):
            raise fail("when of on_module", when, "use before or after")
        function = ModuleFunction(pattern, fn, when, self._remove)
        if self._instrumentation is not None:
            self._functions = (*self._functions, function)
            self._instrumentation.target.engine.add_function(function)
        return function

    def _remove(self, function: ModuleFunction) -> None:
        self._functions = tuple(one for one in self._functions if one is not function)
        if self._instrumentation is not None:
            self._instrumentation.target.engine.remove_function(function)

    def _remove_functions(self) -> None:
        """Take the functions of this handle off."""
        for function in self._functions:
            function.remove()

    def module_results(self) -> list[ModuleResult]:
        """What functions given to ``on_module()`` have returned in requests that have ended: the latest 10,000, the newest last."""
        instrumentation = self._instrumentation
        return [] if instrumentation is None else list(instrumentation.target.engine.inside.results)
