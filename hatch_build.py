"""Build hook of the wheel: compiles the optional C extension, and goes without it where it cannot be compiled.

In: ``INFERSPAN_BUILD_EXTENSION``, which is ``auto`` (the default), ``require`` or ``no``. Out: an ``abi3`` wheel with the extension, or a
pure Python wheel and one line that says what is lost; an editable install has the extension beside its source. With ``require``,
and with a value that is none of the three, the build fails in one line.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["ExtensionHook", "obstacle"]

VARIABLE = "INFERSPAN_BUILD_EXTENSION"
MODES = ("auto", "require", "no")
NAME = "inferspan.capture.modules._recorder"
FOLDER = Path("src", "inferspan", "capture", "modules")
"""Where an editable install has the extension."""
SOURCES = FOLDER / "csrc"
LIMITED_API, PYTHON_TAG = "0x030A0000", "cp310"
"""The oldest Python whose stable ABI is used, which is the oldest that we support."""
LOST = "recording costs about four times more a module call, nothing else changes"
FIX = "install a C compiler and the headers of this Python (Debian: gcc python3-dev), then install again"


def obstacle(implementation: str, *, free_threaded: bool) -> str | None:
    """Why there is no point in compiling for this Python, or ``None``."""
    if implementation != "CPython":
        return f"it is for CPython, and this is {implementation}"
    if free_threaded:
        return "free-threaded Python has no stable ABI that it could use"
    return None


class ExtensionHook(BuildHookInterface[Any]):
    """What hatchling calls before and after it packs a wheel."""

    PLUGIN_NAME = "custom"
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into the wheel, or for an editable install beside the source."""
        text = os.environ.get(VARIABLE, "")
        wanted = text.strip().lower() or "auto"
        if wanted not in MODES:
            self.app.abort(f"inferspan: {VARIABLE} cannot be {text!r}: use auto, require or no")
        folder = tempfile.TemporaryDirectory(prefix="inferspan-build-")
        built = None if wanted == "no" else self._built(folder.name, demanded=wanted == "require")
        if version == "editable":
            self._put_beside_source(built)
            folder.cleanup()
        elif built is not None:
            self._folder = folder
            build_data["force_include"][str(built)] = "/".join([*NAME.split(".")[:-1], built.name])
            build_data["pure_python"] = False
            build_data["tag"] = f"{PYTHON_TAG}-abi3-{self.build_config.builder.get_best_matching_tag().split('-')[2]}"
        else:
            folder.cleanup()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: it is in the wheel now."""
        if self._folder is not None:
            self._folder.cleanup()

    def _built(self, folder: str, *, demanded: bool) -> Path | None:
        reason = obstacle(platform.python_implementation(), free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
        remedy = "" if reason else f" To get it: {FIX}."
        if reason is None:
            try:
                return _compile(self.root, folder)
            except Exception as error:
                reason = _reason(error)
        if demanded:
            self.app.abort(f"inferspan: {VARIABLE}=require, but the C extension cannot be built ({reason}).{remedy}")
        self.app.display_warning(
            f"inferspan: installed without its optional C extension ({reason}): {LOST}.{remedy} {VARIABLE}=no hides this line."
        )
        return None

    def _put_beside_source(self, built: Path | None) -> None:
        beside = Path(self.root, FOLDER)
        if built is not None:
            # Renamed, not written over: a process that has the old file loaded must keep it.
            os.replace(shutil.copy(built, beside / f"{built.name}.new"), beside / built.name)
            return
        for pattern in ("_recorder*.so", "_recorder*.pyd"):
            # What an earlier build left would be used as if it were made of the source as it is now.
            for left in beside.glob(pattern):
                left.unlink()


def _compile(root: str, folder: str) -> Path:
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    # Objects lie in the folder under the path of their source, and Windows bounds the length of that.
    top = Path() if Path.cwd() == Path(root) else Path(root)
    sources = sorted(str(path) for path in (top / SOURCES).glob("*.c"))
    mathematics = [] if os.name == "nt" else ["m"]
    extension = Extension(NAME, sources, define_macros=[("Py_LIMITED_API", LIMITED_API)], py_limited_api=True, libraries=mathematics)
    command = build_ext(Distribution({"name": "inferspan", "ext_modules": [extension]}))
    command.build_lib = command.build_temp = folder
    command.ensure_finalized()
    command.run()
    return Path(folder, command.get_ext_filename(NAME))


def _reason(error: Exception) -> str:
    """One line; what a compiler had to say stands above it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, subprocess.CalledProcessError):
            return f"{cause.cmd[0]} ended with exit status {cause.returncode}"
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split()) or type(error).__name__
