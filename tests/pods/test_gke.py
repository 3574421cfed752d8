"""The JobSet of a launch on GKE, and what kubectl is called with."""

import functools
import json
import os
import shlex

import pytest
from command_lines import refusal, status
from recorder import Recorder

from bert_jax import cli
from bert_jax.tools.pods.clusters import parse_topology

COMMAND = "launch gke bert_tiny --name=pod --image=us/bert:1 --topology=v5e:4x4"
RUN = ["--data.path=gs://b/store", "--workdir=gs://b/run"]
launch = functools.partial(status, *COMMAND.split(), *RUN)


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path / "kubectl", "kubectl")
    monkeypatch.setenv("PATH", f"{recorder.bin}:{os.environ['PATH']}")
    return recorder


def objects(text: str) -> dict:
    return {item["kind"]: item for item in json.loads(text)["items"]}


def pod_of(jobset: dict) -> tuple[dict, dict]:
    (slices,) = jobset["spec"]["replicatedJobs"]
    return slices["template"]["spec"], slices["template"]["spec"]["template"]["spec"]


def test_the_manifest_is_applied_and_ways_to_watch_are_printed(kubectl, capsys):
    kubectl.answers(kubectl_apply=(0, "jobset.jobset.x-k8s.io/pod created\n", ""))
    assert launch("--namespace=lab") == 0
    assert kubectl.calls == [["kubectl", "apply", "--namespace=lab", "--filename=-"]]
    jobset = objects(kubectl.input)["JobSet"]
    assert jobset["metadata"]["name"] == "pod" and jobset["metadata"]["namespace"] == "lab"
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "jobset.jobset.x-k8s.io/pod created"
    assert [line.split(":")[0] for line in said[1:]] == ["state", "log", "end"]
    for line in said[1:]:
        assert shlex.split(line.split(":", 1)[1])[0] == "kubectl"


def test_a_dry_run_prints_what_would_be_applied(kubectl, capsys):
    assert launch() == 0
    capsys.readouterr()
    assert launch("--dry_run") == 0
    first, rest = capsys.readouterr().out.split("\n", 1)
    assert first == "kubectl apply --namespace=default --filename=- <<'END_OF_INPUT'"
    assert rest == kubectl.input + "END_OF_INPUT\n" and len(kubectl.calls) == 1


@pytest.mark.parametrize(
    "options, slices, hosts, chips, label",
    [
        ("--topology=v5e:4x4", 1, 4, 4, "tpu-v5-lite-podslice"),
        ("--topology=v5e:16x16 --slices=2 --mesh.slice=2", 2, 64, 4, "tpu-v5-lite-podslice"),
        ("--topology=v5e:1x1", 1, 1, 1, "tpu-v5-lite-podslice"),
        ("--topology=v6e:2x4 --chips_per_host=8", 1, 1, 8, "tpu-v6e-slice"),
        ("--topology=v4:2x2x4", 1, 4, 4, "tpu-v4-podslice"),
        ("--topology=v5p:4x4x4", 1, 16, 4, "tpu-v5p-slice"),
        ("--topology=tpu7x:2x2x2", 1, 2, 4, "tpu7x"),
    ],
)
def test_every_host_of_a_slice_is_a_pod_with_all_its_chips(options, slices, hosts, chips, label, capsys):
    """Hosts: the numbers of VMs in Google's tables of TPU slices."""
    assert launch(*options.split(), "--dry_run") == 0
    jobset = objects(capsys.readouterr().out.split("\n", 1)[1].removesuffix("END_OF_INPUT\n"))["JobSet"]
    job, pod = pod_of(jobset)
    assert jobset["spec"]["replicatedJobs"][0]["replicas"] == slices
    assert job["parallelism"] == job["completions"] == hosts and job["completionMode"] == "Indexed"
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": chips}
    shape = options.split()[0].partition(":")[2]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": shape,
    }


def test_bad_input_fails_the_job_set_and_everything_else_restarts_it(kubectl):
    assert launch("--max_restarts=7") == 0
    jobset = objects(kubectl.input)["JobSet"]
    job, pod = pod_of(jobset)
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [2]
    assert rule["onExitCodes"]["containerName"] == pod["containers"][0]["name"]
    assert jobset["spec"]["failurePolicy"] == {
        "maxRestarts": 7,
        "rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    }
    assert job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"  # podFailurePolicy needs the latter


def test_spot_nodes_and_a_service_account(kubectl):
    assert launch("--spot", "--service_account=trainer") == 0
    _, pod = pod_of(objects(kubectl.input)["JobSet"])
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true" and pod["serviceAccountName"] == "trainer"


def test_a_configuration_file_comes_as_a_config_map(kubectl, tmp_path):
    text = "from bert_jax import Config\ndef get_config(): return Config()  # größer\n"
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    words = COMMAND.replace("bert_tiny", str(tmp_path / "mine.py")).split()
    assert cli._run(["bert-jax", *words, *RUN]) == 0
    found = objects(kubectl.input)
    assert list(found) == ["ConfigMap", "JobSet"] and found["ConfigMap"]["data"] == {"mine.py": text}
    _, pod = pod_of(found["JobSet"])
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert pod["containers"][0]["command"][:3] == ["bert-jax", "pretrain", f"{mount['mountPath']}/mine.py"]
    assert pod["volumes"] == [{"name": mount["name"], "configMap": {"name": "pod"}}]


def test_kubernetes_schema_accepts_the_job_of_a_slice(kubectl):
    """A JobSet is a resource that clusters add; the Job in it is checked against the schema of Kubernetes itself."""
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate to check the Job")
    assert launch("--spot", "--service_account=trainer") == 0
    job, _ = pod_of(objects(kubectl.input)["JobSet"])
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "slice"}, "spec": job}
    assert validate.validate(whole, "1.31", strict=True)
    with pytest.raises(validate.ValidationError):
        validate.validate({**whole, "spec": {**job, "backofLimit": 0}}, "1.31", strict=True)


def test_teardown_deletes_what_was_created(kubectl, capsys):
    assert launch("--teardown", "--dry_run") == 0
    assert kubectl.calls == []
    (line,) = capsys.readouterr().out.splitlines()
    assert launch("--teardown") == 0
    assert kubectl.calls == [shlex.split(line)]
    assert line == "kubectl delete jobset pod --namespace=default --ignore-not-found"


def test_what_kubectl_refuses_is_one_line(kubectl, capsys):
    kubectl.answers(
        kubectl_apply=(1, "", 'error: no matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"\n')
    )
    assert launch() == 2
    said = capsys.readouterr().err
    assert 'failed with exit code 1: error: no matches for kind "JobSet"' in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "words, message",
    [
        ("--name=pod_1", "--name=pod_1 must be at most 40 lower-case letters"),
        ("--namespace=My", "--namespace=My is not a name that Kubernetes allows"),
        ("--image=", "--image= is not a container image"),
        ("--topology=v5e-16", "--topology=v5e-16 is not one slice of a TPU; it is written like v4:4x4x4, v5e:4x4"),
        ("--topology=v5e:4x4x4", "is not one slice of a TPU"),
        ("--topology=v5p:4x4", "is not one slice of a TPU"),
        ("--topology=v5e:0x4", "is not one slice of a TPU"),
        ("--chips_per_host=8 --topology=v5e:2x2", "--chips_per_host=8 does not fit the 4 chips of v5e:2x2"),
        ("--chips_per_host=2", "hosts have 1, 4 or 8"),
        ("--slices=2", "--slices=2 but mesh.slice=1"),
        ("--workdir=/run", "--workdir=/run is not in a bucket: a pod and its disk are gone after a preemption"),
        ("--max_restarts=-1", "--max_restarts=-1 must be at least 0"),
        ("--imag=x", "unknown option --imag; perhaps you meant --image"),
    ],
)
def test_bad_input_is_refused_before_kubectl_is_called(words, message, kubectl, capsys):
    assert message in refusal(capsys, *COMMAND.split(), *RUN, *words.split())
    assert kubectl.calls == []


def test_without_kubectl(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch() == 2
    assert "kubectl is not installed, or not on PATH" in capsys.readouterr().err


def test_a_topology_gives_the_node_label_its_shape_and_chips():
    assert parse_topology("v5e:16x16") == ("tpu-v5-lite-podslice", "16x16", 256)
    assert parse_topology("v5p:4x4x4") == ("tpu-v5p-slice", "4x4x4", 64)
