"""What an explanation holds: figures and spans of each suggestion, the tree of the time, what limits each part, what data is missing."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import inferspan
from inferspan import semconv
from inferspan.explain.explanation import Explanation
from inferspan.explain.table import RULES
from inferspan.report.figures.explained import explanation_of
from inferspan.report.session import read_session, read_sessions
from tests.explain.made import BOUND, CARD, MADE, Kernel, Run, experts, make, use
from tests.explain.planted import NAP, PLANTED, Sleeping, generate, llama, slow_block, slow_layer
from tests.explain.recording import explained, providers, recorded


@pytest.fixture
def launch(tmp_path: Path) -> tuple[Path, Explanation]:
    """A decode that waits for the host: a third of each step is kernels."""
    make(tmp_path / "session.jsonl", Run(kernel_share=0.33, readings=[use(0.9)]))
    return tmp_path / "session.jsonl", explained(tmp_path / "session.jsonl")


def test_each_rule_has_a_planted_case() -> None:
    """Every rule is planted; that of experts has a test of its own, and that of stages has two names."""
    named = {rule for _, rule in (*PLANTED.values(), *MADE.values())} - {"tokenizer"}
    assert len(named | {"expert_imbalance"}) == len(RULES)


def test_there_are_thirty_planted_cases() -> None:
    """As many as the reach of explain names."""
    assert len(PLANTED) + len(MADE) >= 30


def test_a_suggestion_has_evidence_advice_and_a_setting(launch: tuple[Path, Explanation]) -> None:
    """All that a reader needs to check it and to act on it."""
    found = launch[1].suggestions()[0]
    assert found["rule"] == "launch_bound"
    assert found["severity"] == "high"
    assert found["evidence"]["figures"]["busy_share"] == pytest.approx(0.33)
    assert found["advice"].startswith("Use a static cache")
    assert found["setting"] == 'generate(..., cache_implementation="static")'


def test_spans_of_the_evidence_are_in_the_file(launch: tuple[Path, Explanation]) -> None:
    """They can be looked up by their ids."""
    path, found = launch
    known = {(span.trace_id, span.span_id) for request in read_session(path).requests for span in (request.span, *request.steps)}
    named = {(span.trace_id, span.span_id) for cause in found.causes for span in cause.spans}
    assert named
    assert named <= known


def test_share_and_gain_are_of_the_time_of_all_requests(launch: tuple[Path, Explanation]) -> None:
    """320 ms of 350 ms a request are decode steps, two thirds of them without kernels."""
    cause = launch[1].causes[0]
    assert cause.share(launch[1].total) == pytest.approx(0.67 * 320 / 350, rel=0.01)
    assert cause.gain == pytest.approx(10 * 0.320 * 0.67, rel=0.01)


def test_the_tree_adds_up(launch: tuple[Path, Explanation]) -> None:
    """Parts of the time are all of it, and causes hang below the part that they are of."""
    tree = launch[1].tree
    assert sum(child.seconds or 0.0 for child in tree.children) == pytest.approx(tree.seconds)
    assert [(child.name, [cause.rule for cause in child.children]) for child in tree.children] == [("decode", ["launch_bound"]), ("prefill", [])]


def test_what_concerns_the_machine_hangs_below_all_parts(tmp_path: Path) -> None:
    """A full card slows no phase down more than another."""
    make(tmp_path / "session.jsonl", Run(request={semconv.BATCH_SIZE: 32}, readings=[(semconv.M_GPU_MEMORY_UTILIZATION, 0.95, CARD)]))
    tree = explained(tmp_path / "session.jsonl").tree
    assert [(child.name, [cause.rule for cause in child.children]) for child in tree.children][-1] == ("all parts", ["high_memory"])


def test_a_bound_of_the_roofline_is_sure(tmp_path: Path) -> None:
    """Steps say themselves what limits them."""
    make(tmp_path / "session.jsonl", Run(step={BOUND: "memory"}, prefill={BOUND: "compute"}, prefill_ms=100.0))
    found = {one.name: (one.kind, one.bound, one.sure) for one in explained(tmp_path / "session.jsonl").bottlenecks}
    assert found == {"decode": ("phase", "memory", "sure"), "prefill": ("phase", "compute", "sure")}


def test_without_a_roofline_a_bound_is_inferred_or_not_known(launch: tuple[Path, Explanation]) -> None:
    """Kernels of profiled steps tell of decode; nothing does of prefill."""
    found = {one.name: (one.bound, one.sure) for one in launch[1].bottlenecks}
    assert found == {"decode": ("launch", "likely"), "prefill": (None, None)}


def test_modules_are_bottlenecks_by_their_own_time(tmp_path: Path) -> None:
    """Equal blocks are one part; most of the time is theirs."""
    slow_block(tmp_path / "session.jsonl")
    found = [one for one in explained(tmp_path / "session.jsonl").bottlenecks if one.kind == "module"]
    assert found[0].name == "*", found
    assert found[0].share > 0.5


def missing(path: Path, run: Run) -> dict[str, str | None]:
    """Settings that would record what is missing, by what it is."""
    make(path, run)
    return {one.what: one.setting for one in explained(path).missing}


def test_missing_data_names_its_setting(tmp_path: Path) -> None:
    """A GPU without readings, profiler and modules."""
    found = missing(tmp_path / "session.jsonl", Run())
    assert found["use, memory and clocks of the GPU"] == "nvml=True"
    assert found["where the host waits for the device, and the share of kernels"] == "profile_steps=3, profile_cpu_ops=True"
    assert found["slow modules"] == 'modules="layers" or "all"'


def test_time_between_requests_is_named(tmp_path: Path) -> None:
    """What the program did then is not known without a stage around it; requests with short pauses say nothing."""
    found = missing(tmp_path / "session.jsonl", Run(gap_ms=200.0))
    assert found["time between requests"] == 'with inferspan.stage("load data")'
    assert "time between requests" not in missing(tmp_path / "short.jsonl", Run(gap_ms=20.0))


def test_time_between_programs_is_nothing_to_know(tmp_path: Path) -> None:
    """Two recordings of different hours are one explanation."""
    for name in ("a.jsonl", "b.jsonl"):
        make(tmp_path / name, Run(gap_ms=200.0))
    other = tmp_path / "b.jsonl"
    other.write_text(other.read_text().replace("service.instance.id", "other.id"))
    found = explanation_of(read_sessions([tmp_path / "a.jsonl", tmp_path / "b.jsonl"]))
    assert "time between requests" not in {one.what for one in found.missing}


def test_a_stage_around_the_work_between_requests_is_known(tmp_path: Path) -> None:
    """Then it is part of the time."""
    model = llama()
    with recorded(tmp_path / "session.jsonl", model):
        for _ in range(3):
            with inferspan.stage("load data"):
                time.sleep(0.5)
            generate(model)
    assert "time between requests" not in {one.what for one in explained(tmp_path / "session.jsonl").missing}


def test_one_request_is_no_plural(tmp_path: Path) -> None:
    """The verb goes with the number."""
    make(tmp_path / "typical.jsonl", Run())
    make(tmp_path / "long.jsonl", Run(requests=1, steps=300))
    found = explanation_of(read_sessions([tmp_path / "typical.jsonl", tmp_path / "long.jsonl"]))
    assert [cause.title.partition(" 8")[0] for cause in found.causes if cause.rule == "straggler"] == ["1 of 11 requests (chat big/model) takes"]


def test_one_time_is_no_plural(tmp_path: Path) -> None:
    """Of a compilation."""
    make(tmp_path / "session.jsonl", Run(requests=1, request={semconv.COMPILE_RECOMPILES: 1, semconv.COMPILE_TIME: 0.1}))
    titles = [cause.title for cause in explained(tmp_path / "session.jsonl").causes]
    assert any(title.startswith("compiled again 1 time, in 1 of 1 request") for title in titles)


def test_nothing_about_gpus_is_missing_on_a_cpu(tmp_path: Path) -> None:
    """A model on the CPU has no kernels and no card."""
    found = missing(tmp_path / "session.jsonl", Run(request={semconv.DEVICE_TYPE: "cpu", semconv.DEVICE: "cpu"}))
    assert not [what for what in found if "GPU" in what or "kernels" in what or "device" in what]


def test_a_module_of_the_same_class_is_compared_with_its_equals(tmp_path: Path) -> None:
    """Its equals take less time for the same shapes: that is sure."""
    slow_block(tmp_path / "session.jsonl")
    cause = explained(tmp_path / "session.jsonl").causes[0]
    assert cause.title.endswith("as long as the 3 equal ones")
    assert cause.sure == "sure"


def test_a_module_of_another_class_is_no_equal(tmp_path: Path) -> None:
    """It may have to do more than those in its place in other layers."""
    slow_layer(tmp_path / "session.jsonl")
    cause = explained(tmp_path / "session.jsonl").causes[0]
    assert cause.title.endswith("as long as those of 3 other layers, which are of another class")
    assert cause.sure == "likely"


def test_first_readings_are_no_cause(tmp_path: Path) -> None:
    """They take some milliseconds in every process: 6 % of a recording of one request, which is no reason to read less often."""
    run = Run(requests=1, request={semconv.BATCH_SIZE: 32}, counters=[(semconv.M_SAMPLING_TIME, 0.02, {semconv.SAMPLER: "host"})])
    make(tmp_path / "session.jsonl", run)
    assert [cause.rule for cause in explained(tmp_path / "session.jsonl").causes] == []


def test_first_requests_of_processes_are_no_cost_of_telemetry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes took 0.09 s each for what the first request needs, a quarter of a recording of two requests."""
    told: list[tuple[str, float, dict[str, Any]]] = [(semconv.M_OVERHEAD, 0.09, {})]
    for process in range(2):
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"service.instance.id={process}")
        make(tmp_path / "session.jsonl", Run(requests=1, request={semconv.BATCH_SIZE: 32}, counters=told))
    assert "telemetry" not in [cause.rule for cause in explained(tmp_path / "session.jsonl").causes]


def test_telemetry_is_not_told_to_turn_off_what_is_off(tmp_path: Path) -> None:
    """Nothing is recorded of modules, and steps are sampled: there is no setting to change."""
    path = tmp_path / "session.jsonl"
    make(path, MADE["detail of much"][0], modules="none", steps="sampled")
    cause = explained(path).causes[0]
    assert cause.rule == "telemetry"
    assert cause.setting is None
    assert cause.advice.startswith("Requests are short against what is recorded of them")


def reasons(path: Path, **settings: Any) -> dict[str, str]:
    """Name -> what the explanation says of the limit of each phase and module of a short generation on the CPU."""
    model = llama()
    with recorded(path, model, **settings):
        generate(model)
    return {one.name: one.reason for one in explained(path).bottlenecks}


def test_a_cpu_without_ceilings_is_told_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work was counted, but there is nothing to compare it with; modules need a setting first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = reasons(tmp_path / "session.jsonl")
    assert found["decode"] == "not known: no ceilings; run 'inferspan peaks --measure' and record again"
    assert found["model.layers.*.self_attn"] == 'not known: roofline="all" records it'


def test_a_cpu_far_below_its_ceilings_is_not_the_limit(tmp_path: Path) -> None:
    """Python takes the time of a tiny model."""
    found = reasons(tmp_path / "session.jsonl", peaks={"flops": 1e14, "bandwidth": 1e14})
    assert re.fullmatch(r"not the device: [0-9e.-]+ % of its ceilings", found["decode"])


def test_reasons_of_recompilations_are_told(tmp_path: Path) -> None:
    """The guard that failed, as often as it did."""
    make(tmp_path / "session.jsonl", MADE["recompilations with their reasons"][0])
    cause = explained(tmp_path / "session.jsonl").causes[0]
    assert cause.figures["recompilations"] == 10
    assert cause.figures["reasons"] == ["tensor 'ids' size mismatch at index 1. expected 17, actual 18 (forward): 10"]
    assert cause.seconds == pytest.approx(2.0)


def test_compilations_that_did_not_come_again_are_no_cause(tmp_path: Path) -> None:
    """Requests tell how long they compiled, and none of them compiled again."""
    make(tmp_path / "session.jsonl", Run(request={semconv.BATCH_SIZE: 32, semconv.WARMUP: True, "inferspan.compile.time": 0.2}))
    assert [cause.rule for cause in explained(tmp_path / "session.jsonl").causes] == []


def test_waits_for_the_device_are_placed_in_modules(tmp_path: Path) -> None:
    """The module that reads a value, the operations, and their number."""
    make(tmp_path / "session.jsonl", MADE["values that a router reads"][0])
    cause = explained(tmp_path / "session.jsonl").causes[0]
    assert [(part.name, part.note) for part in cause.parts] == [("model.layers.0.router", "40 waits: aten::item, aten::nonzero")]


def test_large_copies_to_the_host_are_no_waits(tmp_path: Path) -> None:
    """They are results."""
    run = replace(MADE["copies of single values"][0], kernels=[Kernel("memcpy", "Memcpy DtoH (Device -> Pinned)", 0.1, 1 << 20)] * 3)
    make(tmp_path / "session.jsonl", run)
    assert [cause.rule for cause in explained(tmp_path / "session.jsonl").causes] == []


def test_busy_experts(tmp_path: Path) -> None:
    """Routers that send most tokens to one expert."""
    make(tmp_path / "session.jsonl", experts(3.5))
    found = explained(tmp_path / "session.jsonl")
    assert [cause.rule for cause in found.causes] == ["expert_imbalance"]
    assert found.causes[0].figures["imbalance"] == pytest.approx(3.5)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, float):
        yield value


@pytest.mark.parametrize("name", MADE)
def test_shares_are_shares(name: str, tmp_path: Path) -> None:
    """Of no cause more time is told than there is, and every number is finite."""
    make(tmp_path / "session.jsonl", MADE[name][0])
    found = explained(tmp_path / "session.jsonl")
    assert all(0 <= (cause.share(found.total) or 0.0) <= 1 for cause in found.causes)
    assert all(abs(one) < float("inf") for one in _numbers(found.as_dict()))


def modules_of(found: Explanation) -> list[str]:
    """Modules that take 5 % of the time or more, the longest first."""
    return [one.name for one in found.bottlenecks if one.kind == "module"]


def test_a_layer_with_another_class_in_it_is_named_by_its_path(tmp_path: Path) -> None:
    """The other layers are not part of its row."""
    slow_layer(tmp_path / "session.jsonl")
    assert "model.layers.2.mlp (Sleeping)" in modules_of(explained(tmp_path / "session.jsonl"))


def test_members_of_a_sequence_are_told_apart(tmp_path: Path) -> None:
    """Those of the same class and shapes are one row, any other is named by its path."""
    model = nn.Sequential(
        Sleeping(nn.Linear(4, 8), 3 * NAP), Sleeping(nn.Linear(8, 8)), nn.ReLU(), Sleeping(nn.Linear(8, 8)), nn.Tanh()
    ).eval()  # fmt: skip
    with recorded(tmp_path / "session.jsonl", model, modules="0,1,2,3,4"):
        for _ in range(3):
            model(torch.ones(2, 4))
    assert set(modules_of(explained(tmp_path / "session.jsonl"))) >= {"0 (Sleeping)", "* (Sleeping)"}


@pytest.mark.parametrize("metric", [semconv.M_SAMPLING_TIME, semconv.M_OVERHEAD])
def test_what_a_process_counted_before_the_recording_is_not_of_it(metric: str, tmp_path: Path) -> None:
    """A second file of a process, or a file of a collector, begins with counters that have counted for long."""
    path, model = tmp_path / "session.jsonl", llama()
    with providers(path) as (tracers, meters, reader):
        meters.get_meter("earlier").create_counter(metric).add(500.0, {semconv.SAMPLER: "host"})
        off = inferspan.Settings(nvml=False, host=False, allocator=False)
        with inferspan.instrument(model, settings=off, tracer_provider=tracers, meter_provider=meters) as handle:
            generate(model)
            handle.flush()
        reader.collect()
    counted = [figure for cause in explained(path).causes if cause.rule in ("samplers", "telemetry") for figure in _numbers(cause.figures)]
    assert max(counted, default=0.0) < 400

