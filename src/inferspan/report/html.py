"""A session -> one HTML file that needs nothing else: no network, no server, no other file.

In comes a ``Session``; out comes the text of a page with its style, its script and the data as JSON inside. Everything from the session
is data, never markup: the script puts it on the page as text only, and the page's own policy forbids every connection.
"""

from __future__ import annotations

import base64
import functools
import html
import json
from importlib import resources
from pathlib import Path
from typing import Any

from inferspan.report.data_flow import flow_of
from inferspan.report.output.writing import is_stream, write_text
from inferspan.report.payload import payload
from inferspan.report.session import Session
from inferspan.version import version

__all__ = ["is_stream", "preload", "render", "write_report"]

_SCRIPTS = (
    "page.js", "zoom.js", "system.js", "messages.js", "requests.js", "timeline.js", "flame.js", "tokens.js", "activations.js",
    "attention.js", "session.js", "memory.js", "operations.js", "explain.js", "metrics.js", "start.js",
)  # fmt: skip


def render(session: Session, *, title: str | None = None, trace_url: str | None = None, graph: str | None = None) -> str:
    """The page as text.

    Args:
        session: result of ``read_session``.
        title: heading of the page; default names the models, or else the file.
        trace_url: address of a trace in Jaeger or Tempo, with ``{trace_id}`` in it: each request then links to its trace.
        graph: a picture as SVG, shown as an image, in which no script runs.

    Raises:
        ValueError: ``trace_url`` is no http address, or has no ``{trace_id}``; ``graph`` is no SVG.
    """
    data = payload(session)
    data["title"] = _encodable(title or _title(session, data))
    data["version"] = version()
    data["traceUrl"] = _checked(trace_url)
    flow = flow_of(session)
    if flow is not None:
        data["flow"] = _image(flow.to_svg())
    if graph is not None:
        data["graph"] = _image(graph)
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


def write_report(
    session: Session, path: str | Path, *, title: str | None = None, trace_url: str | None = None, graph: str | None = None
) -> Path:
    """Write the page; readers never see an incomplete file, and only its owner may read it.

    Args:
        session: result of ``read_session``.
        path: file to write; an existing one, or a link, is replaced. A pipe or a device, such as ``/dev/stdout``, is written to.
        title: heading of the page.
        trace_url: see ``render``.
        graph: see ``render``.

    Raises:
        OSError: the file cannot be written.
    """
    path = Path(path)
    # Drawn first: a failure must not leave anything in the folder.
    write_text(path, [render(session, title=title, trace_url=trace_url, graph=graph)])
    return path


def preload() -> None:
    """Load everything that a page is made of, so that nothing is imported when one is made."""
    for name in ("report.css", "report.html", *_SCRIPTS):
        _asset(name)


def _title(session: Session, data: dict[str, Any]) -> str:
    models = data["totals"]["models"]
    return f"{', '.join(models[:3])}{' and others' if len(models) > 3 else ''}" if models else session.name


def _encodable(text: str) -> str:
    """The text without lone surrogates, which arguments and file names that are not UTF-8 bring with them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _checked(trace_url: str | None) -> str | None:
    if trace_url is None:
        return None
    if not trace_url.startswith(("http://", "https://")) or "{trace_id}" not in trace_url:
        raise ValueError(f"{trace_url!r} is no address of a trace: it must begin with http:// or https:// and hold {{trace_id}}")
    return _encodable(trace_url)


def _image(svg: str) -> str:
    """An SVG as the address of an image."""
    if not svg.lstrip().startswith(("<svg", "<?xml")):
        raise ValueError("the picture of the graph is no SVG")
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode("utf-8")).decode("ascii")


@functools.cache
def _asset(name: str) -> str:
    return resources.files("inferspan.report").joinpath(f"assets/{name}").read_text(encoding="utf-8")


def _script_safe(text: str) -> str:
    """JSON that no parser of HTML can mistake for the end of the script element."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
