"""Stands in for collector, Jaeger, Prometheus and Grafana: answers on its health port, and behaves badly when told to.

``FAKE_<NAME>`` is a list of words: ``slow=S`` healthy after S seconds, ``sick`` never, ``die=S`` ends after S seconds with code 3,
``deaf`` does not end when asked, ``fork`` has a child that is deaf too, ``daemon`` leaves the work to a child and ends, ``port`` finds its port taken,
``record`` writes its arguments and environment to its folder.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time

PORTS = {
    "otelcol": "OTELCOL_HEALTH_PORT",
    "jaeger": "JAEGER_HEALTH_PORT",
    "grafana": "GF_SERVER_HTTP_PORT",
}


def words(name: str) -> dict[str, str]:
    """What a server is told, by word."""
    return {word.partition("=")[0]: word.partition("=")[2] for word in os.environ.get(f"FAKE_{name.upper()}", "").split()}


def die() -> None:
    """End with last words."""
    print("Error: out of luck", flush=True)
    os._exit(3)


class Health(http.server.BaseHTTPRequestHandler):
    ready_at = 0.0

    def do_GET(self) -> None:
        self.send_response(200 if time.monotonic() >= self.ready_at else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main(name: str) -> None:
    """Be the server of this name."""
    if name == "child":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
        return
    told = words(name)
    print(f"{name} starts", flush=True)
    if "record" in told:
        with open(f"{name}.record.json", "w") as file:
            json.dump({"argv": sys.argv[1:], "environment": dict(os.environ)}, file)
    given = [part.rpartition(":")[2] for part in sys.argv if part.startswith("--web.listen-address")]
    port = given[0] if given else os.environ[PORTS[name]]
    if "port" in told:
        sys.exit(f"Error: listen tcp 127.0.0.1:{port}: bind: address already in use")
    if "deaf" in told:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if "fork" in told or "daemon" in told:
        subprocess.Popen([sys.executable, __file__, "child"])
    if "daemon" in told:
        return
    if "die" in told:
        threading.Timer(float(told["die"]), die).start()
    Health.ready_at = time.monotonic() + float(told.get("slow") or 0) + (1e9 if "sick" in told else 0)
    if not port.isdigit():
        sys.exit(f"Error: listen tcp: lookup tcp/{port}: unknown port")
    http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Health).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
