"""The manifest of a run on TPU slices of GKE: a JobSet (jobset.sigs.k8s.io, v1alpha2), one Job per slice.

GKE sets the variables by which JAX finds the other hosts, also those of other slices; the JobSet controller makes the
headless service by which they find each other's names.
"""

import json
import math
import re
from typing import Any

from bert_jax.config.launching import GkeConfig
from bert_jax.errors import UserError
from bert_jax.pods.job import Job

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


def manifest_text(job: Job, options: GkeConfig) -> str:
    """Return the manifest as JSON, which is YAML too."""
    return json.dumps(manifest(job, options), indent=2, ensure_ascii=False) + "\n"


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
