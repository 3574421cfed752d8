"""Pods of GKE and Slurm, and simulated ones."""

import contextlib
import functools
import io
import json
import os
import re
import shlex
import subprocess
import sys

import jax
import numpy as np
import processes
import pytest
from command_lines import refusal, status, succeed
from processes import EXHAUSTIVE
from recorder import Recorder
from small_pretraining import nothing_held_out, rows, run_config

import bert_jax
from bert_jax import cli
from bert_jax.config import CheckpointConfig, MeshConfig, PhaseConfig
from bert_jax.config.options import to_dict
from bert_jax.pretraining import pretrain
from bert_jax.tools.pods import job as job_of_pod
from bert_jax.tools.pods import launch as launch_of_pod
from bert_jax.tools.pods.clusters import parse_topology
from bert_jax.tools.pods.job import PACKAGE

COMMAND = "launch gke bert_tiny --name=pod --image=us/bert:1 --topology=v5e:4x4"
RUN = ["--data.path=gs://b/store", "--workdir=gs://b/run"]
launch = functools.partial(status, *COMMAND.split(), *RUN)


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    return Recorder(monkeypatch, tmp_path / "bin", "kubectl")


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
    expected = {"cloud.google.com/gke-tpu-accelerator": label, "cloud.google.com/gke-tpu-topology": shape}
    assert pod["nodeSelector"] == expected


def test_bad_input_fails_the_job_set_and_everything_else_restarts_it(kubectl):
    assert launch("--max_restarts=7") == 0
    jobset = objects(kubectl.input)["JobSet"]
    job, pod = pod_of(jobset)
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [2]
    assert rule["onExitCodes"]["containerName"] == pod["containers"][0]["name"]
    expected = {"maxRestarts": 7, "rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]}
    assert jobset["spec"]["failurePolicy"] == expected
    assert job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"  # podFailurePolicy needs the latter


def test_spot_nodes_and_a_service_account(kubectl):
    assert launch("--spot", "--service_account=trainer") == 0
    _, pod = pod_of(objects(kubectl.input)["JobSet"])
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true" and pod["serviceAccountName"] == "trainer"


def test_a_configuration_file_comes_as_a_config_map(kubectl, tmp_path):
    text = "from bert_jax import Config\ndef get_config(): return Config()  # größer\n"
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    words = COMMAND.replace("bert_tiny", str(tmp_path / "mine.py")).split()
    succeed(*words, *RUN)
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


@pytest.mark.slow
def test_what_kubectl_refuses_is_one_line(tmp_path, monkeypatch, capsys):
    """A program that runs, reads what it is given and fails."""
    kubectl, refused = tmp_path / "kubectl", 'no matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"'
    kubectl.write_text(f"#!/bin/sh\ncat > {tmp_path}/input\necho 'error: {refused}' >&2\nexit 1\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert launch() == 2
    assert list(objects((tmp_path / "input").read_text())) == ["JobSet"]
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


SLURM_COMMAND = "launch slurm bert_tiny --name=run --nodes=2"
SLURM_RUN = ["--data.path=/disk/a store", "--workdir=/disk/run"]
launch_of_slurm = functools.partial(status, *SLURM_COMMAND.split(), *SLURM_RUN)
JOB = PACKAGE / "tools" / "pods" / "slurm.sh"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    return Recorder(monkeypatch, tmp_path / "bin", "sbatch", "squeue", "scancel")


def test_the_job_has_a_task_per_gpu_and_a_notice_before_its_limit(slurm, capsys):
    slurm.answers(**{"sbatch_--parsable": (0, "4711;west\n", "")})
    more = ["--partition=a100", "--account=lab", "--time=24:00:00", "--cpus_per_task=12", "--notice_seconds=300"]
    assert launch_of_slurm(*more, "--gpus_per_node=4", "--max_restarts=5") == 0
    asked, submitted = slurm.calls
    assert asked == ["squeue", "--me", "--name=run", "--noheader", "--format=%i %T"]
    options, job = submitted[1 : submitted.index(str(JOB))], submitted[submitted.index(str(JOB)) :]
    assert sorted(options) == sorted(
        "--parsable --job-name=run --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --partition=a100 --account=lab "
        "--time=24:00:00 --cpus-per-task=12 --requeue --open-mode=append --signal=TERM@300 --output=run-%j.log".split()
    )
    assert job == [str(JOB), "5", sys.executable, "-m", "bert_jax", "pretrain", "bert_tiny", *SLURM_RUN]
    expected = ["run is job 4711", "log:    tail --follow=name --retry run-4711.log", "state:  squeue --job=4711"]
    assert capsys.readouterr().out.splitlines() == expected


def test_the_same_launch_again_submits_nothing(slurm, capsys):
    slurm.answers(**{"squeue_--me": (0, "4711 RUNNING\n", "")})
    assert launch_of_slurm() == 0
    assert [call[0] for call in slurm.calls] == ["squeue"]
    assert capsys.readouterr().out.startswith("run is job 4711 already, RUNNING")


def test_a_dry_run_prints_the_command_that_a_launch_makes(slurm, capsys):
    for words in ([], ["--teardown"]):
        slurm.answers(**{"sbatch_--parsable": (0, "1\n", "")})
        assert launch_of_slurm(*words, "--dry_run") == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert launch_of_slurm(*words) == 0
        assert shlex.split(line) == slurm.calls[-1]
        capsys.readouterr()
    assert slurm.calls[-1] == ["scancel", "--me", "--name=run"]


def test_the_run_keeps_no_programs_where_its_launch_keeps_none(slurm, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "true")  # restored after the test, whose command sets it
    slurm.answers(**{"sbatch_--parsable": (0, "1\n", "")})
    assert launch_of_slurm("--no_compilation_cache") == 0
    assert slurm.calls[-1][-4:] == ["bert_tiny", *SLURM_RUN, "--no_compilation_cache"]


def test_what_slurm_refuses_is_one_line(slurm, capsys):
    slurm.answers(**{"sbatch_--parsable": (1, "", "sbatch: error: Invalid account or partition\n")})
    assert launch_of_slurm() == 2
    said = capsys.readouterr().err
    assert "failed with exit code 1: sbatch: error: Invalid account or partition" in said and said.count("\n") == 1


AS_SLURM = """
srun() { echo "$*" >> "$calls"; set -- $codes; codes=${*:2}; return "$1"; }
sleep() { echo "sleep $*" >> "$calls"; }
scontrol() { echo "scontrol $*" >> "$calls"; }
job() ( # NAME, processors of a task, most restarts, exit codes of srun
  calls=$1.calls codes=$4
  [ -z "$2" ] || SLURM_CPUS_PER_TASK=$2
  SLURM_JOB_ID=4711
  source "$JOB" "$3" bert-jax pretrain "a b" > "$1.said"
)
"""
# A worker whose lock cannot be opened any more.
FOLLOW = """
mkdir worker && cp "${JOB%/*}/worker.sh" worker && echo "a line" > worker/log
( flock() { return 66; }; export -f flock; bash worker/worker.sh follow 0 > follow.said 2> /dev/null )
echo $? > follow.code; touch follow.calls
"""
JOBS = {
    "final_0": ("", 3, "0 0"),
    "final_2": ("", 3, "2 0"),
    "final_130": ("", 3, "130 0"),
    "processors": ("12", 3, "75 0"),
    "stopped": ("", 3, "143 0"),
    "crashed": ("", 3, "75 137 0"),
    "given_up": ("", 2, "1 1 1 1"),
    "often": ("", 7, "1 " * 9),
}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Return the exit code of a job, what it said, and its calls; one shell, with functions for programs, runs all.

    It also follows a worker of a TPU, which ends when the directory of that worker has disappeared.
    """
    place, run = tmp_path_factory.mktemp("jobs"), "job {} '{}' {} '{}'; echo $? > {}.code".format
    runs = [run(name, *given, name) for name, given in JOBS.items()]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")} | {"JOB": str(JOB)}
    done = processes.run("bash", "-c", "\n".join([AS_SLURM, *runs, FOLLOW]), cwd=place, env=kept)
    assert (done.returncode, done.stderr) == (0, "")

    def ended(name: str) -> tuple[int, str, list[str]]:
        code, said, calls = ((place / f"{name}.{kind}").read_text() for kind in ("code", "said", "calls"))
        return int(code), said, calls.splitlines()

    return ended


START = "--kill-on-bad-exit=0 --wait=120 bert-jax pretrain a b"


@pytest.mark.parametrize("code", [0, 2, 130])
def test_the_job_ends_with_what_is_final(job, code):
    assert job(f"final_{code}") == (code, f"the run has ended: exit code {code}\n", [START])


def test_the_tasks_get_the_processors_that_the_job_has_asked_for(job):
    """Since Slurm 22.05 srun does not take them from sbatch, which sets this variable if --cpus-per-task was given."""
    asked = START.replace("bert-jax", "--cpus-per-task=12 bert-jax")
    assert job("processors")[2] == [asked, "sleep 10", asked]


def test_the_job_is_requeued_after_it_was_told_to_stop(job):
    said = "stopped by SIGTERM and saved; requeued\n"
    assert job("stopped") == (143, said, [START, "scontrol requeue 4711"])


def test_the_job_starts_again_after_crashes_up_to_the_bound(job):
    assert job("crashed")[::2] == (0, [START, "sleep 10", START, "sleep 20", START])


def test_the_job_gives_up(job):
    code, said, calls = job("given_up")
    assert (code, calls.count(START)) == (1, 3)
    assert said.splitlines()[-1] == "exit code 1; not started again, after 2 restarts"


def test_waits_of_the_job_double_up_to_five_minutes(job):
    waits = [call for call in job("often")[2] if call != START]
    assert waits == [f"sleep {seconds}" for seconds in (10, 20, 40, 80, 160, 300, 300)]


@pytest.mark.skipif(sys.platform != "linux", reason="worker.sh needs the programs of Linux")
def test_following_a_worker_whose_directory_disappears_ends(job):
    """Its lock cannot be opened then, and nothing writes to its log any more."""
    code, said, _ = job("follow")
    assert code == 66 and said in ("", "1\ta line\n")


@pytest.mark.parametrize(
    "words, message",
    [
        ("--name=My_run", "--name=My_run must be at most 40 lower-case letters"),
        ("--nodes=0", "--nodes=0 must be at least 1"),
        ("--gpus_per_node=0", "--gpus_per_node=0 must be at least 1"),
        ("--notice_seconds=0", "--notice_seconds=0 must be at least 1"),
        ("--time=tomorrow", "--time=tomorrow is not a time limit of Slurm, such as 24:00:00 or 2-12:00:00"),
        ("--partition=a;b", "--partition=a;b is not a name that Slurm allows"),
        ("--nodse=2", "unknown option --nodse; perhaps you meant --nodes"),
    ],
)
def test_bad_input_is_refused_before_slurm_is_called(words, message, slurm, capsys):
    assert message in refusal(capsys, *SLURM_COMMAND.split(), *SLURM_RUN, words)
    assert slurm.calls == []


def test_without_slurm(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch_of_slurm() == 2
    assert "sbatch is not installed, or not on PATH; run this on a login node" in capsys.readouterr().err


STEPS = 24
DEVICES = 4 if EXHAUSTIVE else 2
"""Of all hosts together."""


def launched(config, *words: str, command: str = "launch local") -> int:
    file = f"{config.workdir}.json"
    with open(file, "w") as stream:
        json.dump(to_dict(config), stream)
    return cli._run(["bert-jax", *command.split(), file, *words])


@pytest.fixture(scope="module")
def runs(small_store, tmp_path_factory):
    """The same run on devices that belong to this process, to two hosts and to a host each, by number of hosts."""
    place = tmp_path_factory.mktemp("pods")
    configs = {hosts: pod_config(small_store, place / f"hosts{hosts}") for hosts in sorted({1, 2, DEVICES})}
    pretrain(configs[1], devices=jax.devices()[:DEVICES])
    if DEVICES > 2:
        assert launched(configs[2], "--hosts=2", f"--devices_per_host={DEVICES // 2}") == 0
    with contextlib.redirect_stdout(io.StringIO()) as printed:  # as `pretrain` rehearses itself, a device for each host
        assert launched(configs[DEVICES], f"--simulate_hosts={DEVICES}", command="pretrain") == 0
    assert "[host 0] " in printed.getvalue() and f"on {DEVICES} hosts" in printed.getvalue()
    return configs


def pod_config(store, workdir):
    phase = PhaseConfig(steps=STEPS, sequence_length=32, batch_size=16, learning_rate=1e-3)
    mesh, saves = MeshConfig(data=DEVICES // 2, fsdp=2), CheckpointConfig(every_steps=10)
    return run_config(store, workdir, mesh=mesh, checkpoint=saves, phases=(phase,), data=nothing_held_out(store))


def parameters(config) -> dict[str, np.ndarray]:
    return bert_jax.load(config.workdir).params


def same_to_the_bit(config, other) -> None:
    assert rows(config.workdir) == rows(other.workdir) and len(rows(config.workdir)) == STEPS
    ours, theirs = flattened(parameters(config)), flattened(parameters(other))
    assert ours.keys() == theirs.keys() and len(ours) > 20
    for name in ours:
        assert ours[name].tobytes() == theirs[name].tobytes(), name


def flattened(tree, prefix="") -> dict[str, np.ndarray]:
    if not isinstance(tree, dict):
        return {prefix: np.asarray(tree)}
    return {name: leaf for key in tree for name, leaf in flattened(tree[key], f"{prefix}/{key}").items()}


@pytest.mark.slow
@pytest.mark.skipif(not EXHAUSTIVE, reason="set BERT_JAX_EXHAUSTIVE=1; without it each of two hosts has one device")
def test_two_hosts_of_two_devices_are_four_of_one_to_the_bit(runs):
    same_to_the_bit(runs[2], runs[4])


@pytest.mark.slow
def test_several_hosts_train_as_one(runs):
    """Sums over hosts are taken in another order than sums in one process: 1e-5 is 80 units in the last place of 1."""
    ours, theirs = ([row["loss"] for row in rows(runs[hosts].workdir)] for hosts in (2, 1))
    assert len(ours) == STEPS and ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.slow
def test_a_host_that_is_killed_costs_nothing_but_time(runs, small_store, tmp_path, monkeypatch, capsys):
    started, write = [], sys.stdout.write

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    def watched(text):
        write(text)
        if re.search(r"step 1\d/", text) and len(started) == 2:
            started[1].kill()

    monkeypatch.setattr(launch_of_pod.subprocess, "Popen", Recorded)
    monkeypatch.setattr(sys.stdout, "write", watched)
    monkeypatch.setattr(job_of_pod, "FIRST_SECONDS", 0.0)
    config = pod_config(small_store, tmp_path / "run")
    assert launched(config, "--hosts=2", f"--devices_per_host={DEVICES // 2}", "--max_restarts=2") == 0
    assert "restart 1 of at most 2" in capsys.readouterr().out and len(started) == 4
    same_to_the_bit(config, runs[2])
