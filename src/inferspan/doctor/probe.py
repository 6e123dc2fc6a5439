"""Looks at a program's Python and environment from inside: ``python -m inferspan.doctor.probe OUTPUT OPTIONS``.

The doctor starts it in place of the program, with the same launcher, Python and environment. Findings are written as JSON lines to OUTPUT,
one line a topic when it begins and one when it has ended, so that a crash costs one topic.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

__all__ = ["TOPICS", "main"]

TOPICS = (
    "versions", "extension", "program", "environment", "settings", "providers", "session file", "endpoints", "emitted", "nvml", "cuda",
)  # fmt: skip


def main(output: str, options: Mapping[str, Any]) -> None:
    """Run all topics.

    Args:
        output: file to append to.
        options: the fields of ``Look``, ``environ`` excepted.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with open(output, "a", encoding="utf-8") as file:
        look = _look(options)
        for name, topic in _topics().items():
            _write(file, {"begin": name})
            try:
                findings = [finding.plain() for finding in topic(look)]
            except Exception as error:
                from inferspan.doctor.findings import problem

                text = f"the doctor itself failed: {type(error).__name__}: {error}"
                findings = [problem(name, text[:300], "please report it, with this line").plain()]
            _write(file, {"topic": name, "findings": findings})
        _write(file, {"end": True})


def _look(options: Mapping[str, Any]) -> Any:
    from inferspan.doctor.findings import Look
    from inferspan.doctor.scripts import read_script
    from inferspan.zero_code.activation import active

    look = Look(environ={**os.environ}, **options)
    look.environ.pop("GRPC_VERBOSITY", None)  # type: ignore[attr-defined]
    look.shared["zero_code"] = active() is not None
    if look.program is not None:
        look.shared["script"] = read_script(look.program)
    return look


def _topics() -> dict[str, Any]:
    from inferspan.doctor import emission, endpoints, environment, machine, providers, scripts, settings, versions

    found = (
        versions.versions, versions.recorder, scripts.script, environment.environment, settings.settings, providers.providers,
        providers.session_file, endpoints.endpoints, emission.emission, machine.nvml, machine.cuda,
    )  # fmt: skip
    return dict(zip(TOPICS, found, strict=True))


def _write(file: TextIO, line: Mapping[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
    # What the launcher has set up must not hold the doctor up by sending anything.
    os._exit(0)
