"""Becomes another program that dies with its parent. A script, not a module: it starts in some 15 ms, before anything is imported.

    python -I -S launch.py PARENT_PID PROGRAM [ARGUMENT...]

Linux only. Python's own hook between fork and exec is not safe once there are threads; this is a process of its own instead.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for the signal, see that the parent is still there, and become the program."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (ImportError, OSError, AttributeError):
        pass  # the keeper still ends the program when the supervisor is gone
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the supervisor has ended")
    try:
        os.execv(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(f"Error: {sys.argv[2]} cannot be run: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
