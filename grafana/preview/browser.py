"""The programs behind the pictures: npm installs the page's parts, esbuild bundles them, a headless Chromium draws.

In come the page's address and the size of the picture; out come PNG files and what the page says about itself. A program that is missing
or fails is a ``PreviewError`` of one line that names the fix.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BUILD", "FOLDER", "MODULES", "PreviewError", "Tools", "build", "draw", "find_tools", "install"]

FOLDER = Path(__file__).parent
MODULES = FOLDER / "node_modules"
BUILD = FOLDER / "build"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL_TIMEOUT, BUILD_TIMEOUT, DRAW_TIMEOUT = 900, 120, 180
# Code editors and fonts of icons are imported by the tables' component and never shown.
_BUNDLE = (
    "--bundle", "--format=esm", "--splitting", "--minify", "--jsx=automatic", '--define:process.env.NODE_ENV="production"',
    "--loader:.ttf=empty", "--loader:.svg=dataurl", "--loader:.png=dataurl", "--log-level=error",
)  # fmt: skip


class PreviewError(Exception):
    """Ends the command with this one line."""


@dataclass(frozen=True)
class Tools:
    """Paths of the programs."""

    node: str
    npm: str
    browser: str


def find_tools(which: Callable[[str], str | None] = shutil.which) -> Tools:
    """Look for the programs.

    Args:
        which: finds a program by its name.

    Raises:
        PreviewError: one is missing.
    """
    found = {name: which(name) for name in ("node", "npm")}
    browser = next(filter(None, map(which, BROWSERS)), None)
    missing = [name for name, path in (*found.items(), ("chromium", browser)) if path is None]
    if missing:
        raise PreviewError(
            f"not on PATH: {', '.join(missing)}; install Node.js 20 or newer with npm, and Chromium or Chrome"
            " (Debian: apt install nodejs npm chromium)"
        )
    return Tools(str(found["node"]), str(found["npm"]), str(browser))


def _run(what: str, command: list[str], timeout: float, *, given: str | None = None) -> str:
    try:
        result = subprocess.run(command, cwd=FOLDER, input=given, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise PreviewError(f"{what} took longer than {timeout:.0f} s") from None
    if result.returncode:
        raise PreviewError(f"{what} failed: {(result.stderr or result.stdout).strip()[-2000:]}")
    return result.stdout


def install(tools: Tools) -> None:
    """Install the packages of ``package-lock.json`` into ``node_modules``, unless that was done since the file last changed."""
    lock = FOLDER / "package-lock.json"
    done = MODULES / ".inferspan-installed"
    if done.exists() and done.read_bytes() == lock.read_bytes():
        return
    print("installing the preview's packages into grafana/preview/node_modules (480 MB, about a minute) ...", file=sys.stderr, flush=True)
    # Scripts of packages are not run: none of those that we use needs one. The peers of some name React 18, which none of ours is.
    _run("npm ci", [tools.npm, "ci", "--legacy-peer-deps", "--ignore-scripts", "--no-audit", "--no-fund"], INSTALL_TIMEOUT)
    shutil.copyfile(lock, done)


def build(tools: Tools) -> None:
    """Bundle the page into ``build``; it takes two seconds, so it is done each time."""
    esbuild = MODULES / "esbuild" / "bin" / "esbuild"
    _run("esbuild", [tools.node, str(esbuild), "page/app.tsx", f"--outdir={BUILD}", *_BUNDLE], BUILD_TIMEOUT)
    shutil.copyfile(FOLDER / "page" / "index.html", BUILD / "index.html")


def draw(
    tools: Tools, url: str, picture: Path, *, width: int, scale: float = 1.0, rows: bool = False, crop: int | None = None
) -> dict[str, Any]:
    """Draw the page at ``url``.

    Args:
        tools: where the programs are.
        url: address of the page with its query string.
        picture: PNG to write.
        width: width in pixels; the height follows from the dashboard.
        scale: device pixels for each pixel.
        rows: also write a picture of each row, named with ``-1``, ``-2`` and so on.
        crop: cut the picture after so many pixels.

    Returns:
        What the page found: its title, panels, failures, empty panels, rows and height.
    """
    order = {
        "browser": tools.browser,
        "url": url,
        "width": width,
        "scale": scale,
        "timeout": (DRAW_TIMEOUT - 30) * 1000,
        "picture": str(picture.resolve()),
        "rowPictures": rows,
        "crop": crop,
    }
    report: dict[str, Any] = json.loads(_run("drawing", [tools.node, "draw.mjs"], DRAW_TIMEOUT, given=json.dumps(order)))
    return report
