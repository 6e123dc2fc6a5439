"""A session -> one HTML file that needs nothing else: no network, no server, no other file.

In comes a ``Session``; out comes the text of a page with its style, its script and the data as JSON inside. Everything from the session
is data, never markup: the script puts it on the page as text only, and the page's own policy forbids every connection.
"""

from __future__ import annotations

import html
import json
import os
import stat
import tempfile
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from inferspan.report.payload import payload
from inferspan.report.session import Session

__all__ = ["is_stream", "render", "write_report"]

_SCRIPTS = ("page.js", "requests.js", "timeline.js", "tokens.js", "metrics.js", "start.js")


def render(session: Session, *, title: str | None = None) -> str:
    """The page as text.

    Args:
        session: result of ``read_session``.
        title: heading of the page; default names the models, or else the file.
    """
    data = payload(session)
    data["title"] = _encodable(title or _title(session, data))
    data["version"] = _version()
    parts = {
        "title": html.escape(data["title"]),
        "style": _asset("report.css"),
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
        "data": _script_safe(json.dumps(data, separators=(",", ":"), allow_nan=False)),
    }
    page = _asset("report.html")
    # Placeholders are replaced by their position in the template, so a placeholder inside the data has no effect.
    pieces = page.split("@@")
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def write_report(session: Session, path: str | Path, *, title: str | None = None) -> Path:
    """Write the page; readers never see an incomplete file, and only its owner may read it.

    Args:
        session: result of ``read_session``.
        path: file to write; an existing one, or a link, is replaced. A pipe or a device, such as ``/dev/stdout``, is written to.
        title: heading of the page.

    Raises:
        OSError: the file cannot be written.
    """
    path = Path(path)
    text = render(session, title=title).encode("utf-8", "replace")
    if is_stream(path):
        with open(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as stream:
            stream.write(text)
        return path
    # mkstemp creates the file exclusively, with an unpredictable name and mode 0600, so no link can be planted there.
    handle, temporary = tempfile.mkstemp(prefix=".inferspan-", suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def is_stream(path: Path) -> bool:
    """Whether a path names something that is written to and cannot be replaced: a pipe, a device, or a link of the system's to one.

    A link elsewhere is not followed.
    """
    if str(path.parent) in ("/dev", "/dev/fd", "/proc/self/fd"):
        return True
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False
    return kind not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR)


def _title(session: Session, data: dict[str, Any]) -> str:
    models = data["totals"]["models"]
    return f"{', '.join(models[:3])}{' and others' if len(models) > 3 else ''}" if models else session.name


def _encodable(text: str) -> str:
    """The text without lone surrogates, which arguments and file names that are not UTF-8 bring with them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _version() -> str:
    try:
        return metadata.version("inferspan")
    except metadata.PackageNotFoundError:
        return "from source"


def _asset(name: str) -> str:
    return resources.files("inferspan.report").joinpath(f"assets/{name}").read_text(encoding="utf-8")


def _script_safe(text: str) -> str:
    """JSON that no parser of HTML can mistake for the end of the script element."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
