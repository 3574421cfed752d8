"""`bert-jax launch gke` and `bert-jax launch slurm`: jobs for the queue of a cluster.

GKE gets a JobSet (jobset.sigs.k8s.io, v1alpha2) with one Job per TPU slice, submitted with kubectl. GKE sets the
variables by which JAX finds the other hosts, also those of other slices; the JobSet controller makes the headless
service by which they find each other's names. Slurm gets a job with one task per GPU, submitted with sbatch.
"""

import json
import math
import re
import sys
from typing import Any

from bert_jax.config.commands import GkeConfig, SlurmConfig
from bert_jax.errors import UserError
from bert_jax.tools.pods.job import PACKAGE, Job, at_least, call, need_name, need_program, say, shown

# Value of the node label cloud.google.com/gke-tpu-accelerator, and dimensions of the topologies:
# cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus.
ACCELERATORS = {
    "v4": ("tpu-v4-podslice", 3),
    "v5e": ("tpu-v5-lite-podslice", 2),
    "v5p": ("tpu-v5p-slice", 3),
    "v6e": ("tpu-v6e-slice", 2),
    "tpu7x": ("tpu7x", 3),
}
BAD_INPUT = 2
DIRECTORY = "/etc/bert_jax"
"""Where a configuration file is mounted."""
GRACE_SECONDS = 60
"""Between SIGTERM, on which a run saves, and SIGKILL. Spot nodes may be gone sooner."""


def parse_topology(topology: str) -> tuple[str, str, int]:
    """Return accelerator label, topology label and number of chips of a slice such as v5e:4x4.

    Raises:
      UserError: there is no such slice.
    """
    kind, _, shape = topology.partition(":")
    label, dimensions = ACCELERATORS.get(kind, ("", 0))
    if not label or not re.fullmatch("x".join([r"[1-9]\d{0,3}"] * dimensions), shape):
        known = ", ".join(f"{kind}:{'x'.join(['4'] * rank)}" for kind, (_, rank) in ACCELERATORS.items())
        raise UserError(f"--topology={topology} is not one slice of a TPU; it is written like {known}")
    return label, shape, math.prod(map(int, shape.split("x")))


def hosts_of(options: GkeConfig) -> tuple[int, int]:
    """Return the number of hosts of a slice, and the number of chips of each; raise a UserError if they do not fit."""
    chips = parse_topology(options.topology)[2]
    per_host = options.chips_per_host or min(chips, 4)
    if chips % per_host or per_host not in (1, 4, 8):
        raise UserError(
            f"--chips_per_host={per_host} does not fit the {chips} chips of {options.topology}; hosts have 1, 4 or 8"
        )
    return chips // per_host, per_host


def manifest(job: Job, options: GkeConfig) -> dict[str, Any]:
    """Return the objects to create, as kubectl reads them: the JobSet and, if CONFIG is a file, a ConfigMap with it."""
    objects = [_jobset(job, options)]
    if job.file is not None:
        data = {job.file.name: job.file.read_text(encoding="utf-8")}
        objects.insert(0, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(options), "data": data})
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def _metadata(options: GkeConfig) -> dict[str, Any]:
    return {"name": options.name, "namespace": options.namespace}


def _jobset(job: Job, options: GkeConfig) -> dict[str, Any]:
    hosts, _ = hosts_of(options)
    slice_job = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # one host that ends ends its Job, and the JobSet starts all of them again
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": "pretrain", "operator": "In", "values": [BAD_INPUT]},
                }
            ]
        },
        "template": {"metadata": {}, "spec": _pod(job, options)},
    }
    # A slice is given a node pool for itself: its hosts have to be those that are wired together.
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {**_metadata(options), "annotations": exclusive},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": options.max_restarts,
                # The only rule of podFailurePolicy is that on bad input; everything else restarts.
                "rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "replicatedJobs": [
                {"name": "slice", "replicas": options.slices, "template": {"metadata": {}, "spec": slice_job}}
            ],
        },
    }


def _pod(job: Job, options: GkeConfig) -> dict[str, Any]:
    accelerator, shape, _ = parse_topology(options.topology)
    _, chips = hosts_of(options)
    labels = {"cloud.google.com/gke-tpu-accelerator": accelerator, "cloud.google.com/gke-tpu-topology": shape}
    container: dict[str, Any] = {
        "name": "pretrain",
        "image": options.image,
        "command": ["bert-jax", *job.words_elsewhere(DIRECTORY)],
        "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
        "resources": {"requests": {"google.com/tpu": chips}, "limits": {"google.com/tpu": chips}},
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "hostNetwork": True,  # the network between slices is faster without the overlay of the pods
        "dnsPolicy": "ClusterFirstWithHostNet",
        "nodeSelector": labels | ({"cloud.google.com/gke-spot": "true"} if options.spot else {}),
        "containers": [container],
    }
    if options.service_account:
        pod["serviceAccountName"] = options.service_account
    if job.file is not None:
        container["volumeMounts"] = [{"name": "configuration", "mountPath": DIRECTORY, "readOnly": True}]
        pod["volumes"] = [{"name": "configuration", "configMap": {"name": options.name}}]
    return pod


def run_gke(job: Job, options: GkeConfig) -> int:
    """Submit the job to the cluster of the current kubectl context, or delete it; return 0.

    Raises:
      UserError: the options cannot work, or kubectl reports a failure.
    """
    _check_gke(job, options)
    where = f"--namespace={options.namespace}"
    apply = ["kubectl", "apply", where, "--filename=-"]
    objects = ["jobset", *(["configmap"] if job.file else [])]
    delete = [["kubectl", "delete", kind, options.name, where, "--ignore-not-found"] for kind in objects]
    text = json.dumps(manifest(job, options), indent=2, ensure_ascii=False) + "\n"  # which is YAML too
    if options.dry_run:
        print(*(map(shown, delete) if options.teardown else [shown(apply, text)]), sep="\n")
        return 0
    need_program(
        "kubectl", "install it (gcloud components install kubectl) and gcloud container clusters get-credentials"
    )
    if options.teardown:
        for words in delete:
            say(call(words).rstrip())
        return 0
    say(call(apply, text).rstrip())
    pods = f"jobset.sigs.k8s.io/jobset-name={options.name}"
    first = f"{pods},jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
    for meaning, words in (
        ("state", ["kubectl", "get", "jobset,pods", where, f"--selector={pods}", "--output=wide"]),
        ("log", ["kubectl", "logs", where, f"--selector={first}", "--follow", "--tail=-1"]),
        ("end", delete[0]),
    ):
        say(f"{meaning}:  {shown(words)}")
    return 0


def _check_gke(job: Job, options: GkeConfig) -> None:
    need_name(options.name)
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", options.namespace):
        raise UserError(f"--namespace={options.namespace} is not a name that Kubernetes allows")
    if not re.fullmatch(r"[\w.:/@-]+", options.image, re.ASCII):
        raise UserError(
            f"--image={options.image} is not a container image, such as us-docker.pkg.dev/project/images/bert:1"
        )
    at_least(options, slices=1, max_restarts=0, chips_per_host=0)
    hosts_of(options)
    job.need_slices(options.slices)
    job.need_bucket("a pod and its disk are gone after a preemption")


def run_slurm(job: Job, options: SlurmConfig) -> int:
    """Submit the job, unless one of its name is queued or running, or cancel it; return 0.

    Raises:
      UserError: the options cannot work, or Slurm reports a failure.
    """
    _check_slurm(options)
    submit, cancel = submit_words(job, options), ["scancel", "--me", f"--name={options.name}"]
    if options.dry_run:
        print(shown(cancel if options.teardown else submit))
        return 0
    need_program("sbatch", "run this on a login node of the cluster")
    if options.teardown:
        call(cancel)
        say(f"{options.name} is cancelled")
        return 0
    queued = call(["squeue", "--me", f"--name={options.name}", "--noheader", "--format=%i %T"]).split()
    if queued:
        number, state = queued[:2]
        say(f"{options.name} is job {number} already, {state}; --teardown cancels it")
    else:
        number = call(submit).strip().partition(";")[0]  # a federation adds the name of the cluster
        say(f"{options.name} is job {number}")
    say(f"log:    tail --follow=name --retry {options.name}-{number}.log")
    say(f"state:  squeue --job={number}")
    return 0


def submit_words(job: Job, options: SlurmConfig) -> list[str]:
    """Return the words of the command that submits the job; it prints the number of the job."""
    given = {
        "partition": options.partition,
        "account": options.account,
        "time": options.time,
        "cpus-per-task": options.cpus_per_task,
    }
    return [
        "sbatch",
        "--parsable",
        f"--job-name={options.name}",
        f"--nodes={options.nodes}",
        # JAX takes one process per GPU; each sees all GPUs of its node and picks its own.
        f"--ntasks-per-node={options.gpus_per_node}",
        f"--gpus-per-node={options.gpus_per_node}",
        *(f"--{name}={value}" for name, value in given.items() if value),
        "--requeue",
        "--open-mode=append",
        f"--signal=TERM@{options.notice_seconds}",
        f"--output={options.name}-%j.log",
        str(PACKAGE / "tools" / "pods" / "slurm.sh"),
        str(options.max_restarts),
        *job.command(sys.executable, "-m", "bert_jax"),
    ]


def _check_slurm(options: SlurmConfig) -> None:
    need_name(options.name)
    at_least(options, nodes=1, gpus_per_node=1, cpus_per_task=0, notice_seconds=1, max_restarts=0)
    if options.time and not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", options.time):
        raise UserError(f"--time={options.time} is not a time limit of Slurm, such as 24:00:00 or 2-12:00:00")
    for name in ("partition", "account"):
        if not re.fullmatch(r"[\w.,-]*", getattr(options, name)):
            raise UserError(f"--{name}={getattr(options, name)} is not a name that Slurm allows")
