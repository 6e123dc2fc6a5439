"""What the queries of panels answer, asked of promtool: both conventions, failures only, one card seen twice, slices, hosts of agents."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.programs import need

pytest.importorskip("grafana_foundation_sdk", reason="the SDK that the dashboards are generated with needs Python 3.11")

from grafana.generator.gpu import host
from grafana.generator.gpu import queries as gpu_queries
from grafana.generator.queries import Queries, or_zero, ratio
from inferspan import semconv

Q = Queries(("env", "service", "model", "host", "instance", "gpu"))
DURATION = semconv.M_SERVER_DURATION
FAILED = ratio(Q.count(DURATION, 'error_type!=""', by=["job"]), Q.count(DURATION, by=["job"]))
# One request a second for ten minutes; a rate over a minute is then 1.
STEADY = "0+15x40"


def usage(instance: str, names: str) -> dict[str, str]:
    """Output tokens of a process that follows ``latest``, ``legacy`` or both (``dup``) conventions: 2 a second by either."""
    labels = f'instance="{instance}",gen_ai_request_model="m"'
    latest = {f"gen_ai_client_inference_usage_output_tokens_total{{{labels}}}": "0+30x40"}
    legacy = {
        f'gen_ai_client_token_usage_sum{{{labels},gen_ai_token_type="output"}}': "0+30x40",
        f'gen_ai_client_token_usage_sum{{{labels},gen_ai_token_type="input"}}': "0+900x40",
    }
    return {"latest": latest, "legacy": legacy, "dup": latest | legacy}[names]


def card(hw_id: str, instance: str, name: str, **readings: float) -> dict[str, str]:
    """Readings of a card as one process reports them."""
    labels = f'hw_id="{hw_id}",hw_name="{name}",host_name="{instance}",instance="{instance}"'
    extra = {"hw_gpu_utilization_ratio": ',hw_gpu_task="general"'}
    return {f"{metric}{{{labels}{extra.get(metric, '')}}}": f"{value:g}x40" for metric, value in readings.items()}


TWICE = card("A", "pod-1", "nvidia0", hw_power_watts=300) | card("A", "pod-2", "nvidia1", hw_power_watts=300)
WHOLE = card("A", "a", "nvidia0", hw_gpu_utilization_ratio=0.9, hw_power_watts=200, inferspan_gpu_power_limit_watts=700)
IDLE = card("B", "a", "nvidia1", hw_gpu_utilization_ratio=0, hw_power_watts=300, inferspan_gpu_power_limit_watts=700)
WITHOUT = card("C", "a", "nvidia2", hw_power_watts=300, inferspan_gpu_power_limit_watts=700)
OURS = {
    f'system_cpu_utilization_ratio{{host_name="h1",instance="{one}",cpu_mode="idle"}}': f"{idle}x40"
    for one, idle in (("p", 0.4), ("q", 0.6))
}
AGENT = {
    f'system_cpu_time_seconds_total{{host_name="{name}",state="{state}"}}': f"0+{step}x40"
    for name in ("h1", "h2")
    for state, step in (("idle", 45), ("user", 15))
}


@pytest.mark.parametrize(
    ("expression", "series", "expected"),
    [
        pytest.param(Q.tokens("output"), usage("a", "latest"), {"{}": 2}, id="tokens-latest"),
        pytest.param(Q.tokens("output"), usage("a", "legacy"), {"{}": 2}, id="tokens-legacy"),
        pytest.param(Q.tokens("output"), usage("a", "dup"), {"{}": 2}, id="tokens-dup-not-twice"),
        pytest.param(
            Q.tokens("output", by=["gen_ai_request_model"]),
            usage("a", "latest") | usage("b", "legacy") | usage("c", "dup"),
            {'{gen_ai_request_model="m"}': 6},
            id="tokens-of-a-mixed-fleet",
        ),
        pytest.param(FAILED, {'gen_ai_server_request_duration_seconds_count{job="j"}': STEADY}, {'{job="j"}': 0}, id="errors-never-failed"),
        pytest.param(
            FAILED,
            {'gen_ai_server_request_duration_seconds_count{job="j",error_type="E"}': STEADY},
            {'{job="j"}': 1},
            id="errors-failed-only",
        ),
        pytest.param(FAILED, {'gen_ai_server_request_duration_seconds_count{job="j"}': "7x40"}, {}, id="errors-no-traffic"),
        pytest.param(f"sum ({Q.device(semconv.M_POWER, named=False)})", TWICE, {"{}": 300}, id="one-card-in-two-containers"),
        pytest.param(
            gpu_queries.BUSY, WHOLE | IDLE | WITHOUT, {'{hw_id="A"}': 0.9, '{hw_id="C"}': 0.429}, id="busy-by-power-where-no-utilisation"
        ),
        pytest.param(or_zero("count (up > 1)", "count (up)"), {'up{job="j"}': "1x40"}, {"{}": 0}, id="zero-of-some"),
        pytest.param(
            host.cpu_in_use(Q), OURS | AGENT, {'{host_name="h1"}': 0.6, '{host_name="h2"}': 0.25}, id="host-ours-else-the-agent's"
        ),
    ],
)
def test_a_query_answers(expression: str, series: Mapping[str, str], expected: Mapping[str, float], tmp_path: Path) -> None:
    """The expression of a panel, with all variables at All, gives these values after five minutes."""
    need("promtool")
    filled = re.sub(r"\$\w+", ".*", expression.replace("$__rate_interval", "1m").replace("$__range", "5m"))
    filled = f"round({filled}, 0.001)"
    asked: dict[str, Any] = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": filled, "eval_time": "5m", "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()]}
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"fuzzy_compare": True, "tests": [asked]}), encoding="utf-8")
    result = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_filters_follow_the_labels() -> None:
    """A metric is filtered by the variables for which it has a label; agents and collectors, which are no programs, by none of these."""
    assert Q.series(semconv.M_ACTIVE, 'x="y"') == (
        'inferspan_generate_active{deployment_environment_name=~"$env",service_name=~"$service",gen_ai_request_model=~"$model",'
        'host_name=~"$host",instance=~"$instance",x="y"}'
    )
    assert 'inferspan_model_name=~"$model"' in Q.series(semconv.M_FORWARD_DURATION, part="_count")
    assert 'hw_id=~"$gpu"' in Q.series(semconv.M_POWER)
    assert Q.series("host_metrics/system.cpu.time") == 'system_cpu_time_seconds_total{host_name=~"$host",state!=""}'
    assert Q.series("otelcol_exporter_queue_size") == "otelcol_exporter_queue_size"


def test_a_wrong_part_is_named() -> None:
    """A histogram without a part, or a gauge with one, says what there is."""
    with pytest.raises(ValueError, match=r"inferspan\.generate\.active is a UpDownCounter: part must be one of '', not '_count'"):
        Q.series(semconv.M_ACTIVE, part="_count")
