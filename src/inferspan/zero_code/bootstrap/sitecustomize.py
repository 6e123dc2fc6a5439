"""Python imports this before the program, because ``inferspan run`` has put its folder on ``PYTHONPATH``.

It leaves ``sys.path`` as it would have been, runs the ``sitecustomize`` that it stands before, and switches zero code on. The variable
stays, so that processes that the program starts do the same.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

__all__: list[str] = []


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    try:
        _switch_on(os.path.dirname(os.path.dirname(os.path.dirname(here))))
    except Exception as error:
        print(f"inferspan: the program runs without telemetry: {type(error).__name__}: {error}", file=sys.stderr)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _switch_on(root: str) -> None:
    if importlib.util.find_spec("inferspan") is None:
        # It was found by way of the current folder, which a script does not have on its path.
        sys.path.append(root)
    from inferspan.zero_code.activation import activate

    activate()


if __name__ == "sitecustomize":
    _start()
