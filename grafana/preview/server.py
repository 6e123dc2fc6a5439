"""The page, its dashboard and the way to Prometheus and Jaeger, on one free port of the loopback, so that the browser asks one origin.

In comes a dashboard as bytes and the addresses of both servers; out comes the address of the page. A server that cannot be reached is
answered for with 502 and one sentence, which the page draws in the panel that asked.
"""

from __future__ import annotations

import mimetypes
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

__all__ = ["Site", "serving"]

TIMEOUT = 60.0
_PASSED_ON = ("Content-Type", "Accept")


@dataclass(frozen=True)
class Site:
    """What the page is made of.

    Attributes:
        dashboard: JSON of the dashboard.
        folders: folder of the files below each path; the longest path that fits wins.
        upstream: name and address of the server behind each path, ``None`` where no address was given.
    """

    dashboard: bytes
    folders: Mapping[str, Path]
    upstream: Mapping[str, tuple[str, str | None]]

    def file(self, path: str) -> Path | None:
        """The file that a path names, or ``None``: nothing outside the folders is given away."""
        for prefix in sorted(self.folders, key=len, reverse=True):
            if path.startswith(prefix):
                folder = self.folders[prefix].resolve()
                found = folder if folder.is_file() else (folder / (path[len(prefix) :] or "index.html")).resolve()
                return found if found.is_file() and found.is_relative_to(folder) else None
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    site: Site


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        site, path = cast(_Server, self.server).site, self.path.partition("?")[0]
        if path == "/dashboard.json":
            self._answer(200, "application/json", site.dashboard)
        elif any(path.startswith(prefix) for prefix in site.upstream):
            self._pass_on(None)
        elif (found := site.file(path)) is not None:
            self._answer(200, mimetypes.guess_type(found.name)[0] or "application/octet-stream", found.read_bytes())
        else:
            self._answer(404, "text/plain", f"no {path} here".encode())

    def do_POST(self) -> None:
        self._pass_on(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: failures are reported by the page."""

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _pass_on(self, body: bytes | None) -> None:
        upstream = cast(_Server, self.server).site.upstream
        prefix = next((prefix for prefix in upstream if self.path.startswith(prefix)), None)
        if prefix is None:
            self._answer(404, "text/plain", b"nothing takes a POST here")
            return
        name, address = upstream[prefix]
        if address is None:
            self._answer(502, "text/plain", f"no address of {name} was given".encode())
            return
        headers = {key: self.headers[key] for key in _PASSED_ON if key in self.headers}
        request = urllib.request.Request(f"{address.rstrip('/')}/{self.path[len(prefix) :]}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                self._answer(answer.status, answer.headers.get_content_type(), answer.read())
        except urllib.error.HTTPError as error:
            # Prometheus explains a bad query in the body of its 400: the page shows that text.
            self._answer(error.code, error.headers.get_content_type(), error.read())
        except OSError as error:
            reason = getattr(error, "reason", error)
            self._answer(502, "text/plain", f"{name} at {address} does not answer: {reason}".encode())


@contextmanager
def serving(site: Site) -> Iterator[str]:
    """Serve a site until the end of the block.

    Args:
        site: what to serve.

    Yields:
        The address of the page, without a slash at its end.
    """
    server = _Server(("127.0.0.1", 0), _Handler)
    server.site = site
    thread = threading.Thread(target=server.serve_forever, name="preview", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
