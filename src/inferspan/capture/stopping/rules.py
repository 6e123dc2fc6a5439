"""When a sequence is stopped: by its tokens, or by the logits of its steps. Torch operations that nothing waits for.

In: token ids, raw logits. Out: a bool for each row, on the device. Only shapes are read on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Collapse", "Loops", "nonfinite_rows"]


class Loops:
    """Whether the last tokens of a row repeat themselves with one period.

    Args:
        tokens: tokens that must be a loop, its first period included; more where three periods are longer.
        period: largest period.
    """

    def __init__(self, tokens: int, period: int) -> None:
        self.tokens, self.period = tokens, period
        self._needed = [max(tokens, 3 * one) for one in range(1, period + 1)]
        self._known: tuple[int, torch.device, Tensor, Tensor] | None = None

    def _tables(self, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Of ``width`` last tokens, for each period: the place to compare each with, and the places that need not be equal."""
        known = self._known
        if known is None or known[0] != width or known[1] != device:
            places, periods = torch.arange(width, device=device), torch.arange(1, self.period + 1, device=device).unsqueeze(1)
            needed = torch.clamp(3 * periods, min=self.tokens)
            # A period that needs more tokens than there are is met nowhere: its place before the first token is compared, and fails.
            free = (places < width - needed + periods) & (needed <= width)
            known = self._known = (width, device, places - periods, free)
        return known[2], known[3]

    def rows(self, ids: Tensor, generated: int) -> Tensor | None:
        """Rows of ``ids`` whose last tokens are a loop, ``[rows]``; ``None`` if they have too few.

        Args:
            ids: ``[rows, width]``.
            generated: tokens of a row that were generated, the last ones; others are not looked at.
        """
        width = min(generated, self._needed[-1], int(ids.shape[1]))
        if width < self.tokens:
            return None
        tail = ids[:, -width:]
        before, free = self._tables(width, ids.device)
        same = (tail.unsqueeze(1) == tail[:, before.clamp(min=0)]) & (before >= 0)
        return (same | free).all(-1).any(-1)


class Collapse:
    """Whether the entropy of a row's distribution has been next to nothing for many steps in a row.

    Args:
        tokens: steps in a row.
        entropy: nats below which the entropy of a step counts.
    """

    def __init__(self, tokens: int, entropy: float) -> None:
        self.tokens, self.entropy = tokens, entropy
        self._run: Tensor | None = None

    def reset(self) -> None:
        """Another generation begins."""
        self._run = None

    def rows(self, logits: Tensor) -> Tensor:
        """Rows ``[rows]`` that have collapsed, after a step with these logits ``[rows, vocabulary]``."""
        values = logits.float()
        logarithms = torch.log_softmax(values, dim=-1)
        # A token that is masked out has no part in the sum, where 0 times infinity would be NaN.
        entropy = -(logarithms.exp() * logarithms.clamp(min=-1e4)).sum(-1)
        low = entropy < self.entropy
        run = self._run
        self._run = run = low.int() if run is None or run.shape != low.shape or run.device != low.device else (run + 1) * low
        return run >= self.tokens


def nonfinite_rows(logits: Tensor) -> Tensor:
    """Rows ``[rows]`` whose logits ``[rows, vocabulary]`` have NaN or plus infinity; minus infinity is a mask."""
    # The largest value of a row is NaN if any of them is.
    largest = logits.amax(-1)
    return largest.isnan() | (largest == torch.inf)
