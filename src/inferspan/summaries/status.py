"""What is attached to a model at this moment, what is recorded of it, and what is not observed.

In: the state of the observers as plain values, and settings. Out: an object, as dict, text and HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from inferspan.settings import Settings
from inferspan.text.numbers import counted

from .notebook import status_html
from .summary import printable

__all__ = ["Status", "status_of"]

_FIGURES = (
    "logits", "token_arrays", "analysis", "device_time", "output_stats", "input_stats", "routing", "entropy_metric", "module_metric",
    "activation_metric",
)  # fmt: skip
"""Settings that have figures collected."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of one handle.

    Attributes:
        attached: whether the model is instrumented.
        model: its name or class; ``None`` of a handle that is detached.
        total_modules: submodules of the model.
        modules: paths of those that are observed in recorded passes.
        stages: paths of those that are stages, such as a vision encoder.
        hooks: observers on modules now: 0 between recorded passes.
        root_hooks: observers on the model itself, which see its calls: 1, or the 2 hooks of a pair.
        functions: functions of ``handle.on_module()`` that are to run.
        figures: settings that are on and have figures collected, such as ``logits``.
        unobserved: why something is not observed, one reason each.
    """

    attached: bool = False
    model: str | None = None
    total_modules: int = 0
    modules: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    hooks: int = 0
    root_hooks: int = 0
    functions: int = 0
    figures: tuple[str, ...] = ()
    unobserved: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, as plain values for JSON."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: [*value] if isinstance(value, tuple) else value for name, value in values.items()}

    def text(self, most: int = 12) -> str:
        """Everything as plain text.

        Args:
            most: names of modules.
        """
        rows = [f"  {title}: {words}" for title, words in self._rows(most)]
        return "\n".join([str(self), *map(printable, rows)])

    def __str__(self) -> str:
        """In one line."""
        if not self.attached:
            return "detached"
        return printable(f"{self.model}: {self.short}")

    @property
    def short(self) -> str:
        """How many modules are observed, and what is on them."""
        return f"{len(self.modules):,} of {counted(self.total_modules, 'module')} observed, {counted(self.hooks, 'hook')} on them now"

    def _repr_html_(self) -> str:
        return status_html(str(self), self._rows(100))

    def _rows(self, most: int) -> list[tuple[str, str]]:
        found = [
            ("modules", _listed(self.modules, most)),
            ("stages", _listed(self.stages, most)),
            ("hooks on the model itself", str(self.root_hooks) if self.attached else ""),
            ("functions of on_module", f"{self.functions:,}" if self.functions else ""),
            ("figures", ", ".join(self.figures)),
            ("not observed", "; ".join(self.unobserved)),
        ]
        return [(title, words) for title, words in found if words]


def status_of(
    settings: Settings,
    *,
    model: str | None,
    names: Sequence[str],
    modules: Sequence[str],
    stages: Sequence[str],
    hooks: int,
    root_hooks: int,
    functions: int,
    unobserved: str | None,
) -> Status:
    """The status of an instrumented model.

    Args:
        settings: in force.
        model: its name or class.
        names: paths of all submodules.
        modules: paths of those that are selected.
        stages: paths of those that are stages.
        hooks: observers on modules.
        root_hooks: observers on the model itself.
        functions: functions of the program that run at modules.
        unobserved: reasons, as ``inferspan.unobserved`` has them.
    """
    reasons = unobserved.split("; ") if unobserved else []
    taken = {*modules, *stages}
    left = sum(name not in taken for name in names)
    if settings.steps == "none" and names:
        reasons.append("steps='none': no module is observed")
    elif left:
        verb = "is" if left == 1 else "are"
        reasons.append(f"modules={settings.modules!r}: {counted(left, 'module')} {verb} not selected")
    figures = [name for name in _FIGURES if getattr(settings, name)]
    if settings.numerics != "none":
        figures.append("numerics")
    if settings.capture_content != "NO_CONTENT":
        figures.append("capture_content")
    return Status(True, model, len(names), (*modules,), (*stages,), hooks, root_hooks, functions, (*figures,), (*reasons,))


def _listed(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
