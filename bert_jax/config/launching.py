"""Options of `bert-jax launch`, per platform, and of the rehearsal of `bert-jax pretrain`, as frozen dataclasses.

Only the standard library is imported here, as in `config.options`. The docstring of a platform is its help: its usage,
then what it does. No option has the name of one of `pretrain`, which the same command line takes too.
"""

import dataclasses

from bert_jax.config.field_values import field_values
from bert_jax.config.options import Config


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuConfig:
    """launch tpu CONFIG --name=NAME --zone=ZONE --accelerator_type=TYPE --data.path=STORE --workdir=gs://BUCKET/DIR

    Train on Cloud TPU VMs: request a slice, install, start on all workers, show the log, restart after a preemption.

    The request waits in the queue of Cloud TPU. If the slice is taken away, it is requested again and the run resumes.
    At the end the slice is deleted. Ctrl-C only detaches: the run continues, and the same command shows its log again.
    CONFIG is that of `bert-jax pretrain`, and all options of that command apply.
    """

    name: str
    """Name of the queued resource, and of its slice. If one of this name exists, the command attaches to it."""
    zone: str
    """Zone of Google Cloud, such as us-central2-b."""
    accelerator_type: str
    """Kind and size of a slice, such as v5litepod-256, v5p-128 or v6e-64."""
    runtime_version: str = ""
    """Image of the TPU VMs. By default the one that Google documents for JAX on this accelerator type."""
    slices: int = 1
    """Number of slices. mesh.slice must be the same number."""
    spot: bool = False
    """Request spot capacity, which is cheaper and may be taken away at any time."""
    project: str = ""
    """Project of Google Cloud. By default that of the gcloud configuration."""
    service_account: str = ""
    """Service account of the workers, which must have access to the bucket. By default that of Compute Engine."""
    wheel: str = ""
    """Wheel of bert_jax to install on the workers. By default one is built from this checkout."""
    max_restarts: int = 10
    """Maximum number of consecutive restarts; a start that lasts for an hour resets the count. A run that ended because
    of bad input is never restarted."""
    keep: bool = False
    """Do not delete the slice at the end. It costs money until --teardown deletes it."""
    teardown: bool = False
    """End the run and delete the slice, and do nothing else."""
    dry_run: bool = False
    """Print the commands, which can be pasted into a shell, and run nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GkeConfig:
    """launch gke CONFIG --name=NAME --image=IMAGE --topology=TOPOLOGY --data.path=STORE --workdir=gs://BUCKET/DIR

    Train on TPU slices of Google Kubernetes Engine: submit a JobSet, which restarts the run after a preemption.

    A cluster with TPU node pools, the JobSet controller and a container image with bert_jax must exist. The command
    returns at once and says how to watch the run. CONFIG is that of `bert-jax pretrain`, and all options of that
    command apply.
    """

    name: str
    """Name of the JobSet."""
    image: str
    """Container image in which bert-jax can be called, such as us-docker.pkg.dev/project/images/bert_jax:1."""
    topology: str
    """Chips of one slice, such as v5e:4x4, v5p:4x4x4 or v6e:4x8. The node pools must be of this kind."""
    chips_per_host: int = 0
    """Number of chips of one node. 0: four, or all chips of a smaller slice. For v5e:2x4 and v6e:2x4, 8 is possible."""
    slices: int = 1
    """Number of slices, each on a node pool of its own. mesh.slice must be the same number."""
    spot: bool = False
    """Run on spot nodes only."""
    namespace: str = "default"
    """Namespace of the JobSet."""
    service_account: str = ""
    """Kubernetes service account that has access to the bucket. By default that of the namespace."""
    max_restarts: int = 100
    """Maximum number of restarts of the whole JobSet. A run that ended because of bad input is never restarted."""
    teardown: bool = False
    """Delete the JobSet, and do nothing else."""
    dry_run: bool = False
    """Print the command with its manifest, which can be pasted into a shell, and run nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """launch slurm CONFIG --name=NAME --nodes=N --data.path=STORE --workdir=DIR

    Train on the GPUs of a Slurm cluster: submit a job with one task per GPU, which is requeued after a preemption.

    The job runs the Python that runs this command, so its environment and the paths must be on disks that all nodes
    see. The command returns at once and says how to watch the job. CONFIG is that of `bert-jax pretrain`, and all
    options of that command apply.
    """

    name: str
    """Name of the job. If a job of this name is queued or running, none is submitted."""
    nodes: int
    """Number of nodes."""
    gpus_per_node: int = 8
    """Number of GPUs, and of tasks, on each node."""
    partition: str = ""
    """Partition. By default that of the cluster."""
    account: str = ""
    """Account that is charged. By default that of the user."""
    time: str = ""
    """Time limit, such as 24:00:00 or 2-12:00:00. The job saves before it and is requeued. By default that of the
    partition."""
    cpus_per_task: int = 0
    """Number of processor cores per task. 0: the default of the cluster."""
    notice_seconds: int = 120
    """Number of seconds before the time limit at which the run is asked to save."""
    max_restarts: int = 3
    """Maximum number of consecutive restarts inside one allocation. A run that ended because of bad input is never
    restarted."""
    teardown: bool = False
    """Cancel the job, and do nothing else."""
    dry_run: bool = False
    """Print the command, which can be pasted into a shell, and run nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """launch local CONFIG --data.path=STORE --workdir=DIR [--hosts=N]

    Run pretrain as several processes of this machine that act as the hosts of a pod, connected over gloo.

    Each process has virtual CPU devices. All of them end when one ends with an error, and signals reach all of them.
    Every line that a process prints begins with its number. CONFIG is that of `bert-jax pretrain`, and all options of
    that command apply.
    """

    hosts: int = 2
    """Number of processes, each of which acts as one host."""
    devices_per_host: int = 1
    """Number of virtual CPU devices of each process."""
    max_restarts: int = 0
    """Maximum number of consecutive restarts after a failure. A run that ended because of bad input or Ctrl-C is never
    restarted."""
    dry_run: bool = False
    """Print the commands, which can be pasted into a shell, and run nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(Config):
    """Options of `bert-jax pretrain`: those of a run, and whether it is rehearsed as a pod."""

    simulate_hosts: int = 0
    """Rehearse the run on a pod: start this many processes on this machine, connected over gloo, that act as
    hosts with one device each. `bert-jax launch local` has more options. 0: train in this process."""

    @classmethod
    def of(cls, config: Config) -> "PretrainConfig":
        """Return the options of a run that is not rehearsed."""
        return cls(**field_values(Config, config))

    @property
    def run(self) -> Config:
        """The options of the run alone."""
        return Config(**field_values(Config, self))


PLATFORMS = {"tpu": TpuConfig, "gke": GkeConfig, "slurm": SlurmConfig, "local": LocalConfig}
