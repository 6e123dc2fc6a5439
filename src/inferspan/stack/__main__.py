"""The two background processes of the stack: ``python -m inferspan.stack supervise`` and ``keep``. Not for users."""

from __future__ import annotations

import json
import sys

from inferspan.stack.keeper import keep
from inferspan.stack.plan import plan_from_json
from inferspan.stack.supervisor import supervise


def main() -> int:
    """Run the one that is asked for; what a supervisor is to do comes on standard input."""
    if sys.argv[1] == "keep":
        keep()
        return 0
    order = json.loads(sys.stdin.read())
    return supervise(plan_from_json(order["plan"]), timeout=order["timeout"])


if __name__ == "__main__":
    sys.exit(main())
