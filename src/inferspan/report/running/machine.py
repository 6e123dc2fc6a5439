"""Readings of a host and its GPUs as two values, and as lines of text: 1 decimal, what is not read is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from inferspan import semconv

__all__ = ["Card", "Machine", "card_text", "cleaned", "host_text", "machine_lines", "machine_of"]

MIB = 2**20
_OF_A_CARD = (
    semconv.M_GPU_MEMORY_USAGE, semconv.M_GPU_MEMORY_LIMIT, semconv.M_GPU_UTILIZATION, semconv.M_TEMPERATURE, semconv.M_POWER,
)  # fmt: skip


class Card(NamedTuple):
    """A GPU: memory in bytes, utilisation from 0 to 1, degrees Celsius, watts; ``None`` where it is not read."""

    name: str
    used: float | None
    limit: float | None
    utilization: float | None
    temperature: float | None
    power: float | None


class Machine(NamedTuple):
    """A host: share of its processors that is busy, memory in bytes, and its GPUs."""

    name: str
    cpu: float | None
    used: float | None
    limit: float | None
    cards: tuple[Card, ...]


def machine_of(name: str, readings: Iterable[tuple[str, float, Mapping[str, Any]]]) -> Machine:
    """The newest readings of a host.

    Args:
        name: of the host.
        readings: metric, value and attributes, each series once.
    """
    busy, used, limit = list[float](), list[float](), None
    cards: dict[str, dict[str, float]] = {}
    names: dict[str, str] = {}
    for metric, value, attributes in readings:
        device = attributes.get(semconv.HW_ID)
        if metric == semconv.M_SYSTEM_CPU_UTILIZATION and attributes.get(semconv.CPU_MODE) not in ("idle", "iowait"):
            busy.append(value)
        elif metric == semconv.M_SYSTEM_MEMORY_USAGE and attributes.get(semconv.MEMORY_STATE) == "used":
            used.append(value)
        elif metric == semconv.M_SYSTEM_MEMORY_LIMIT:
            limit = value
        elif metric in _OF_A_CARD and isinstance(device, str) and _whole_device(metric, attributes):
            cards.setdefault(device, {})[metric] = value
            names[device] = str(attributes.get(semconv.HW_NAME, device))
    return Machine(
        name=name,
        cpu=min(1.0, sum(busy)) if busy else None,
        used=sum(used) if used else None,
        limit=limit,
        cards=tuple(Card(names[device], *map(values.get, _OF_A_CARD)) for device, values in sorted(cards.items())),
    )


def _whole_device(metric: str, attributes: Mapping[str, Any]) -> bool:
    """Whether the series is the device's own figure: of several engines and sensors it is the general one."""
    if metric == semconv.M_TEMPERATURE:
        return bool(attributes.get(semconv.HW_SENSOR_LOCATION, "gpu") == "gpu")
    if metric == semconv.M_GPU_UTILIZATION:
        return bool(attributes.get(semconv.HW_GPU_TASK, "general") == "general")
    return True


def machine_lines(machine: Machine) -> list[str]:
    """A line for each GPU, which has its number if there are several, and one for the host."""
    several = len(machine.cards) > 1
    lines = [f"GPU {number}: {card_text(card)}" if several else f"GPU: {card_text(card)}" for number, card in enumerate(machine.cards)]
    if machine.cpu is not None or machine.used is not None:
        lines.append(f"CPU: {host_text(machine)}")
    return lines


def cleaned(text: str) -> str:
    """Text of a file or a program, without characters that would steer a terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def card_text(card: Card) -> str:
    """Memory, utilisation, temperature and power of a GPU."""
    parts = [_memory(card.used, card.limit)] if card.used is not None else []
    if card.utilization is not None:
        parts.append(f"utilisation {100 * card.utilization:.1f}%")
    if card.temperature is not None:
        parts.append(f"temperature {card.temperature:.1f} °C")
    if card.power is not None:
        parts.append(f"power {card.power:.1f} W")
    return ", ".join(parts) or "no readings"


def host_text(machine: Machine) -> str:
    """Processor and memory of a host."""
    parts = [f"{100 * machine.cpu:.1f}%"] if machine.cpu is not None else []
    if machine.used is not None:
        parts.append(_memory(machine.used, machine.limit))
    return ", ".join(parts)


def _memory(used: float, limit: float | None) -> str:
    if not limit:
        return f"memory {used / MIB:,.1f} MiB"
    return f"memory {used / MIB:,.1f} / {limit / MIB:,.1f} MiB ({100 * used / limit:.1f}%)"
