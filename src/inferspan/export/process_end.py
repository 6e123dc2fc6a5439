"""The ways a process ends, and the action before each: flush or close our pipelines, within the promised time.

===================================================  ===============================================================================
end                                                  mechanism
===================================================  ===============================================================================
the program returns, raises or calls ``sys.exit()``  ``atexit``
a process of ``multiprocessing``                     its finalisers, since it ends without ``atexit``
a worker of a pool of billiard (Celery)              its method ``_do_exit``, since it ends by ``os._exit()``
SIGTERM, default disposition                         a handler that flushes and has the signal end the process; set again before a
                                                     request on the main thread, if the program has set the default disposition since
SIGTERM, a handler of the program's                  nothing of ours is put over it, unless ``flush_on_sigterm=True`` asks for that
SIGTERM under uvicorn                                ``Server.shutdown``: uvicorn raises the signal again when it is done
===================================================  ===============================================================================

Nothing can be done at ``os._exit()``, SIGKILL or a crash. Nothing raises.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from inferspan.guard import contain

__all__ = ["ProcessEnd"]

SHARE = 0.8
"""Of the promised time; the rest is for the rest of the exit (other handlers, unloading a large program)."""
_MARK = "_inferspan_original"
_disposition: Callable[[int], Any] = getattr(sys.modules.get("_signal"), "getsignal", signal.getsignal)
"""``signal.getsignal`` without its search for a member of an enumeration, which fails for a handler: 5 us before each stage."""


class ProcessEnd:
    """The actions before this process, and children that it forks, end.

    Args:
        flush: sends everything; is given seconds.
        close: sends everything and closes, for good; is given seconds.
        begin: called first when the process ends.
        tell: called when time is up or all is sent; is given the seconds promised. Tells what was not delivered.
    """

    def __init__(
        self,
        flush: Callable[[float], bool],
        close: Callable[[float], bool],
        *,
        begin: Callable[[], None] = lambda: None,
        tell: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._flush, self._close = flush, close
        self._begin, self._tell = begin, tell
        self._timeout: float | None = None
        self._signal_timeout = 0.0
        self._follows_sigterm = False
        self._handler: Callable[[int, FrameType | None], None] | None = None
        self._ending = False
        self._last: tuple[Callable[[], None], ...] = ()

    def finish_with(self, action: Callable[[], None]) -> None:
        """Call ``action`` last, when the process ends or SIGTERM ends it; what it raises is contained."""
        self._last += (action,)

    def _finish(self) -> None:
        for action in self._last:
            with contain("end of the process"):
                action()

    @property
    def closes_at_exit(self) -> bool:
        """Whether ``close_at_exit`` has been called."""
        return self._timeout is not None

    def close_at_exit(self, timeout: float) -> None:
        """Close when the interpreter, a process of ``multiprocessing`` or a worker of billiard's pools ends.

        Args:
            timeout: longest time in seconds that the exit may take. The latest call counts.
        """
        first, self._timeout = self._timeout is None, timeout
        if not first:
            return
        atexit.register(self._at_exit)
        with contextlib.suppress(ImportError):  # not on every platform
            from multiprocessing import util

            # Finalisers have to be registered in the child: it forgets those of its parent. billiard uses the same registry.
            util.register_after_fork(self, lambda end: end._close_with_process())
        if _is_child():
            self._close_with_process()
        self._before_os_exit()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._before_os_exit)

    def _close_with_process(self) -> None:
        from multiprocessing import util

        util.Finalize(None, self._at_exit, exitpriority=10)

    def _before_os_exit(self) -> None:
        """Close before a worker of billiard's pools calls ``os._exit()``; looked for again in each child, which may have loaded it."""
        with contain("exit of billiard's workers"):
            _wrap(sys.modules.get("billiard.pool"), "Worker", "_do_exit", self._around_exit)

    def _around_exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def leave(worker: Any, *args: Any, **kwargs: Any) -> Any:
            self._at_exit()
            return original(worker, *args, **kwargs)

        return leave

    def _at_exit(self) -> None:
        self._send_last(self._close, self._timeout or 0.0)
        self._finish()

    def _send_last(self, send: Callable[[float], bool], timeout: float) -> None:
        """Send what there is and tell what was not delivered: nothing else says so when the process has ended."""
        with contain("end of the process"):
            self._begin()
        send(SHARE * timeout)
        with contain("end of the process"):
            self._tell(timeout)

    # ---------------------------------------------------------------------------------------------------------- SIGTERM
    def flush_at_sigterm(self, timeout: float, *, over_handlers: bool) -> bool:
        """Flush on SIGTERM, then do what would have happened without us.

        Args:
            timeout: longest time in seconds that the signal may be held up.
            over_handlers: whether a handler of the program's is replaced by one that flushes and then calls it. Otherwise only the
                default disposition is.

        Returns:
            Whether SIGTERM flushes.
        """
        self._signal_timeout, self._follows_sigterm = timeout, True
        with contain("exit of uvicorn"):
            _wrap(sys.modules.get("uvicorn.server"), "Server", "shutdown", self._around_shutdown)
        if threading.current_thread() is not threading.main_thread():
            return self._handler is not None
        previous = signal.getsignal(signal.SIGTERM)
        if previous != signal.SIG_DFL and (self._handler is not None or not over_handlers):
            return self._handler is not None
        return previous is not None and self._set_handler(previous)

    def look_at_sigterm(self) -> None:
        """Flush on SIGTERM also if the program has set the default disposition since; called before each request."""
        if not self._follows_sigterm or threading.current_thread() is not threading.main_thread():
            return
        if _disposition(signal.SIGTERM) == signal.SIG_DFL:
            self._set_handler(signal.SIG_DFL)

    def _set_handler(self, previous: Any) -> bool:
        # Not tried again before every request, if it could not be done.
        self._follows_sigterm = False
        if _handled_outside_of_python(previous):
            return False
        with contain("SIGTERM handler"):
            handler = functools.partial(self._on_sigterm, previous)
            signal.signal(signal.SIGTERM, handler)
            self._handler = handler
            self._follows_sigterm = True
        return self._follows_sigterm

    def _on_sigterm(self, previous: Any, number: int, frame: FrameType | None) -> None:
        # A second signal is not held up.
        first, self._ending = not self._ending, True
        if first and previous == signal.SIG_DFL:
            self._send_last(self._flush, self._signal_timeout)
        elif first:  # the program decides whether it ends
            self._flush(SHARE * self._signal_timeout)
        if callable(previous):
            self._ending = False
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            if first:
                self._finish()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        else:
            self._ending = False

    def _around_shutdown(self, original: Callable[..., Any]) -> Callable[..., Any]:
        async def shutdown(server: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return await original(server, *args, **kwargs)
            finally:
                # No request is open any more, and what comes next may be the end of the process.
                with contain("exit of uvicorn"):
                    self._flush(SHARE * self._signal_timeout)

        return shutdown


def _wrap(module: Any, class_name: str, method: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put something around a method of a class, once, if the class is there."""
    owner = getattr(module, class_name, None)
    original = getattr(owner, method, None)
    if owner is None or original is None or hasattr(original, _MARK):
        return
    wrapper = functools.wraps(original)(around(original))
    setattr(wrapper, _MARK, original)
    setattr(owner, method, wrapper)


def _is_child() -> bool:
    """Whether this is a process of ``multiprocessing`` or billiard."""
    for name in ("multiprocessing.process", "billiard.process"):
        current = getattr(sys.modules.get(name), "current_process", None)
        if current is not None and type(current()).__name__ != "_MainProcess":
            return True
    return False


def _handled_outside_of_python(previous: Any) -> bool:
    """Whether a library in C or Rust handles SIGTERM, of which Python does not know."""
    if previous != signal.SIG_DFL:
        return False
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii") as status:  # on Linux only
        for line in status:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False
