"""What the rows of the overview have in common: its variables, its queries, the label that makes a call a failed one."""

from __future__ import annotations

from ..queries import Queries
from ..variables import COMMON

__all__ = ["FAILED", "NAMES", "Q"]

NAMES = (*COMMON, "trace_service", "slow")
Q = Queries(NAMES)
FAILED = 'error_type!=""'
