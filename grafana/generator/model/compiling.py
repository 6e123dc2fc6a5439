"""Row of "Model internals" about torch.compile: graphs, graph breaks and recompilations of the processes."""

from __future__ import annotations

from inferspan import semconv as s

from ..frame import Row
from ..links import to_traces
from ..panels import Query, Says, Sized, trend
from ..queries import Queries
from ..variables import COMMON

__all__ = ["row"]

PROCESSES = Queries(tuple(name for name in COMMON if name != "model"))
"""The counts are of processes, whichever models they serve."""
EMPTY = "no process has loaded torch.compile"


def _panels() -> list[Sized]:
    recompiled = Says(
        "Functions that were compiled again, by instance.",
        "rate of `inferspan.compile.recompiles`, torch's own numbers of compilations beyond the first of each function.",
        "None after the warm-up is right. Events `inferspan.recompilation` on the requests have the guard that failed:"
        " pad or bucket the sizes, or compile with `dynamic=True`.",
        empty=EMPTY,
    )
    graphs = Says(
        "Graphs that were made, and graph breaks.",
        "rates of `inferspan.compile.graphs` and `inferspan.compile.graph_breaks`.",
        "Graphs long after a start are recompilations. Events `inferspan.graph_break` have the reason and the line.",
        empty=EMPTY,
    )
    return [
        trend(
            "Recompilations", Query(PROCESSES.rate(s.M_COMPILE_RECOMPILES, by=["instance"]), "{{instance}}"),
            unit="ops", width=12, says=recompiled, links=[to_traces("Traces with recompilations", tags=f"{s.WARMUP}=true")],
        ),
        trend(
            "Graphs and graph breaks", Query(PROCESSES.rate(s.M_COMPILE_GRAPHS), "graphs"),
            Query(PROCESSES.rate(s.M_COMPILE_GRAPH_BREAKS), "graph breaks"), unit="ops", width=12, says=graphs,
        ),
    ]  # fmt: skip


def row() -> Row:
    """The row, closed."""
    return Row("Recompilations", _panels(), closed=True)
