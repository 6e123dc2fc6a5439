"""The manifests without a cluster: their schema, and that all that they name is there and fits the configurations.

What kustomize makes of them is looked at where kubectl is installed: it needs no cluster for that.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferspan.export.resource import detected_resource
from tests.collector_config.combinations import FOLDER, load, merged, text
from tests.collector_config.conftest import Run
from tests.collector_config.readings import defaults

KUBERNETES_VERSION = "1.31"
Object = dict[str, Any]


def objects(name: str) -> list[Object]:
    """The objects of a manifest."""
    return list(yaml.safe_load_all(text(name)))


KUSTOMIZATION: Object = load("kustomization.yaml")
DEPLOYED = [each for name in KUSTOMIZATION["resources"] for each in objects(name)]
MANIFESTS = [*DEPLOYED, *objects("kubernetes/program.yaml")]
WORKLOADS = {each["metadata"]["name"]: each for each in MANIFESTS if each["kind"] in ("DaemonSet", "StatefulSet", "Deployment")}
COLLECTORS = ("otelcol-agent", "otelcol-gateway")
every_collector = pytest.mark.parametrize("name", COLLECTORS)


def of_kind(kind: str) -> list[Object]:
    """The deployed objects of a kind."""
    return [each for each in DEPLOYED if each["kind"] == kind]


def pod(name: str) -> Object:
    """The pod of a workload."""
    return WORKLOADS[name]["spec"]["template"]["spec"]


def container(name: str) -> Object:
    """The only container of a workload."""
    (only,) = pod(name)["containers"]
    return only


def values(name: str) -> dict[str, str]:
    """The variables of a workload that are written out."""
    return {each["name"]: each["value"] for each in container(name)["env"] if "value" in each}


def configurations(name: str) -> list[str]:
    """The files that a collector is started with, as they are called here."""
    generated = {Path(file).name: file for each in KUSTOMIZATION["configMapGenerator"] if each["name"] == name for file in each["files"]}
    return [generated[argument.rpartition("/")[2]] for argument in container(name)["args"]]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
def test_schema(manifest: Object) -> None:
    """Each object has the fields that its kind has in Kubernetes, no others, each of the right type."""
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is in the dev dependencies")
    validator.validate(manifest, KUBERNETES_VERSION, strict=True)
    with pytest.raises(validator.ValidationError):
        validator.validate({**manifest, "sepc": {}}, KUBERNETES_VERSION, strict=True)


def test_every_manifest_is_used() -> None:
    """Files of the folder are resources, parts of a ConfigMap, or the example of a program."""
    files = {path.relative_to(FOLDER).as_posix() for path in (FOLDER / "kubernetes").iterdir()}
    generated = {file for each in KUSTOMIZATION["configMapGenerator"] for file in each["files"]}
    assert files == {name for name in {*KUSTOMIZATION["resources"], *generated} if "/" in name} | {"kubernetes/program.yaml"}
    assert all((FOLDER / name).is_file() for name in generated)


@every_collector
def test_configuration_is_mounted(name: str) -> None:
    """Each file that a collector is told of is a key of the ConfigMap that is mounted at its folder."""
    mounted = {each["mountPath"]: each["name"] for each in container(name)["volumeMounts"]}
    maps = {each["name"]: each["configMap"]["name"] for each in pod(name)["volumes"] if "configMap" in each}
    for argument in container(name)["args"]:
        folder, _, key = argument.removeprefix("--config=").rpartition("/")
        keys = {
            Path(file).name
            for each in KUSTOMIZATION["configMapGenerator"]
            if each["name"] == maps[mounted[folder]]
            for file in each["files"]
        }
        assert key in keys


def test_what_a_pod_says_of_itself_is_on_its_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of the program's manifest, filled in as Kubernetes does, are attributes of its resource; the process stays ours."""
    fields = {"status.hostIP": "10.0.0.7", "spec.nodeName": "node-3", "metadata.name": "model-server-7d9f", "metadata.uid": "0f6c-11"}
    known: dict[str, str] = {}
    for one in container("model-server")["env"]:
        value = one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        known[one["name"]] = re.sub(r"\$\((\w+)\)", lambda match: known[match[1]], value)
        monkeypatch.setenv(one["name"], known[one["name"]])
    attributes = detected_resource({}).attributes
    expected = {
        "k8s.pod.name": "model-server-7d9f", "k8s.pod.uid": "0f6c-11", "k8s.node.name": "node-3", "host.name": "node-3",
        "service.name": "model-server", "deployment.environment.name": "prod",
    }  # fmt: skip
    assert {key: attributes.get(key) for key in expected} == expected
    assert len(str(attributes["service.instance.id"])) == 36


@every_collector
def test_every_volume_is_mounted(name: str) -> None:
    """Mounts and volumes are the same set, and what the variables call folders lies in a mount; only the queue can be written to."""
    claims = [each["metadata"]["name"] for each in WORKLOADS[name]["spec"].get("volumeClaimTemplates", ())]
    volumes = [each["name"] for each in pod(name)["volumes"]] + claims
    mounts = {each["name"]: each for each in container(name)["volumeMounts"]}
    assert sorted(mounts) == sorted(volumes)
    folders = {value for value in values(name).values() if value.startswith("/")}
    assert folders <= {each["mountPath"] for each in mounts.values()}
    assert [key for key, each in mounts.items() if not each.get("readOnly")] == ["queue"]
    assert mounts["queue"]["mountPath"] == values(name)["OTELCOL_STORAGE"]


@every_collector
def test_every_variable_is_read(name: str) -> None:
    """Variables of ours are read by the configuration, the others by OpenTelemetry or Go, and none that must be set is left out."""
    read = {variable: default for file in configurations(name) for variable, default in defaults(file).items()}
    node = set(re.findall(r"node_from_env_var: (\w+)", "".join(text(file) for file in configurations(name))))
    given = {each["name"] for each in container(name)["env"]}
    assert given - set(read) - node == given & {"OTEL_RESOURCE_ATTRIBUTES", "GOMEMLIMIT"}
    assert node <= given
    assert "required" not in {default for variable, default in read.items() if variable not in given}
    loopback = {variable for variable, default in read.items() if default.startswith(("127.0.0.1", "http://127.0.0.1"))}
    assert loopback <= given, "the default would lead into the pod itself"


@every_collector
def test_ports_are_those_of_the_configuration(name: str) -> None:
    """Every port that is opened is one that the configuration listens on; probes ask the health check."""
    read = {variable: default for file in configurations(name) for variable, default in defaults(file).items()}
    ports = {each["name"]: each["containerPort"] for each in container(name)["ports"]}
    listening = {
        int(default): variable for variable, default in read.items() if variable.startswith("OTELCOL_") and variable.endswith("_PORT")
    }
    assert set(ports.values()) <= set(listening)
    for probe in ("readinessProbe", "livenessProbe"):
        asked = container(name)[probe]["httpGet"]
        assert (asked["path"], listening[ports[asked["port"]]]) == ("/", "OTELCOL_HEALTH_PORT")


def test_programs_reach_the_agent() -> None:
    """The example sends to the address of its node, to a port that the agent has there; each $(NAME) is defined above its use."""
    endpoint = values("model-server")["OTEL_EXPORTER_OTLP_ENDPOINT"]
    node_ports = {each.get("hostPort") for each in container("otelcol-agent")["ports"]}
    assert int(endpoint.rpartition(":")[2]) in node_ports and "$(NODE_IP)" in endpoint
    for name in WORKLOADS:
        known: set[str] = set()
        for each in container(name)["env"]:
            assert set(re.findall(r"\$\((\w+)\)", each.get("value", ""))) <= known
            known.add(each["name"])
    told = {pair.partition("=")[0] for pair in values("model-server")["OTEL_RESOURCE_ATTRIBUTES"].split(",")}
    (by_itself, _) = load("kubernetes/agent-attributes.yaml")["processors"]["k8s_attributes"]["pod_association"]
    assert by_itself["sources"][0]["name"] in told
    assert told <= {*load("prometheus.yml")["otlp"]["promote_resource_attributes"], "k8s.pod.uid"}


def test_agents_reach_the_gateways() -> None:
    """Both ways from the agent are services in front of the gateways: the headless one for traces, another for the rest."""
    agent = {**defaults("agent.yaml"), **values("otelcol-agent")}
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind("Service")}
    gateway = WORKLOADS["otelcol-gateway"]
    labels = gateway["spec"]["template"]["metadata"]["labels"]
    ports = {each["name"]: each["containerPort"] for each in container("otelcol-gateway")["ports"]}
    assert services[agent["GATEWAY_DNS"]]["clusterIP"] == "None"
    assert gateway["spec"]["serviceName"] == agent["GATEWAY_DNS"]
    host, _, port = agent["GATEWAY"].partition(":")
    assert "clusterIP" not in services[host]
    for name, wanted in ((agent["GATEWAY_DNS"], agent["GATEWAY_PORT"]), (host, port)):
        assert services[name]["selector"].items() <= labels.items()
        (open_port,) = services[name]["ports"]
        # A headless service gives the addresses of the pods, so the number must be the container's own as well.
        assert str(open_port["port"]) == wanted == str(ports[open_port["targetPort"]])


def test_rights_are_those_of_the_attributes() -> None:
    """The agent's account is bound to what k8s_attributes asks for and to nothing else; the gateway has none."""
    (account,), (role,), (binding,) = of_kind("ServiceAccount"), of_kind("ClusterRole"), of_kind("ClusterRoleBinding")
    name = account["metadata"]["name"]
    assert (pod("otelcol-agent")["serviceAccountName"], binding["roleRef"]["name"]) == (name, role["metadata"]["name"])
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": KUSTOMIZATION["namespace"]}]
    rights = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    wanted = (("", "pods"), ("", "namespaces"), ("apps", "replicasets"))
    assert rights == {(*resource, verb) for resource in wanted for verb in ("get", "list", "watch")}
    assert pod("otelcol-gateway")["automountServiceAccountToken"] is False


def bytes_of(size: str) -> int:
    """A quantity of memory or disk, of Kubernetes or of Go."""
    number, unit = re.fullmatch(r"(\d+)([KMGT]i)B?", size).groups()  # type: ignore[union-attr]
    return int(number) * 1024 ** ("KMGT".index(unit[0]) + 1)


def test_limits_hold() -> None:
    """The collector's own limits lie below the container's, and the volume is larger than the queues that are on it."""
    for name in COLLECTORS:
        limit = bytes_of(container(name)["resources"]["limits"]["memory"])
        assert bytes_of(values(name)["GOMEMLIMIT"]) < limit
        assert bytes_of(container(name)["resources"]["requests"]["memory"]) <= limit
    agent = {**defaults("agent.yaml"), **values("otelcol-agent")}
    assert int(agent["OTELCOL_MEMORY_MIB"]) * 1024**2 < bytes_of(agent["GOMEMLIMIT"])
    (claim,) = WORKLOADS["otelcol-gateway"]["spec"]["volumeClaimTemplates"]
    on_disk = [each for each in load("gateway.yaml")["exporters"].values() if "storage" in ((each or {}).get("sending_queue") or {})]
    queues = len(on_disk) * int(defaults("gateway.yaml")["OTELCOL_QUEUE_BYTES"])
    assert bytes_of(claim["spec"]["resources"]["requests"]["storage"]) >= 2 * queues


def test_agents_go_last() -> None:
    """The agents' priority is one of the cluster's users: the system's own are refused outside kube-system by some clusters."""
    (priority,) = of_kind("PriorityClass")
    assert pod("otelcol-agent")["priorityClassName"] == priority["metadata"]["name"]
    assert (0 < priority["value"] <= 1_000_000_000, priority.get("globalDefault", False)) == (True, False)
    assert not priority["metadata"]["name"].startswith("system-")


def test_pods_have_few_rights() -> None:
    """Images have the tag of one release, the same everywhere; no container can gain rights or write outside its queue."""
    version = load("builder-config.yaml")["dist"]["version"]
    for name in COLLECTORS:
        assert container(name)["image"] == f"otel/opentelemetry-collector-contrib:{version}"
        context = {**pod(name).get("securityContext", {}), **container(name)["securityContext"]}
        assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
        assert (context["capabilities"], context["seccompProfile"]) == ({"drop": ["ALL"]}, {"type": "RuntimeDefault"})


def test_overlay_repeats_the_pipelines() -> None:
    """With what the cluster knows added right after the memory limit, the pipelines are otherwise those of agent.yaml."""
    plain = load("agent.yaml")["service"]["pipelines"]
    for name, each in merged(("agent.yaml", "kubernetes/agent-attributes.yaml"))["service"]["pipelines"].items():
        first, *rest = plain[name]["processors"]
        added = ["k8s_attributes"] if "otlp" in each["receivers"] else []
        assert each == {**plain[name], "processors": [first, *added, *rest]}


@pytest.mark.integration
def test_kustomize(run_tool: Run) -> None:
    """Kustomize puts all objects into one namespace, and the ConfigMaps with the very files under the names that the pods mount."""
    result = run_tool("kubectl", "kustomize", str(FOLDER))
    assert result.returncode == 0, result.stdout
    made = list(yaml.safe_load_all(result.stdout))
    maps = {each["metadata"]["name"]: each["data"] for each in made if each["kind"] == "ConfigMap"}
    for name in COLLECTORS:
        (workload,) = [each for each in made if each["metadata"]["name"] == name and "template" in each.get("spec", {})]
        (mounted,) = [each["configMap"]["name"] for each in workload["spec"]["template"]["spec"]["volumes"] if "configMap" in each]
        assert maps[mounted] == {Path(file).name: text(file) for file in configurations(name)}
    cluster_wide = {"Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"}
    assert {each["metadata"].get("namespace") for each in made if each["kind"] not in cluster_wide} == {KUSTOMIZATION["namespace"]}
