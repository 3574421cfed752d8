"""`bert-jax launch gke`: a JobSet, submitted with kubectl."""

import re

from bert_jax.config.launching import GkeConfig
from bert_jax.errors import UserError
from bert_jax.pods.job import Job, at_least, need_name
from bert_jax.pods.jobset import hosts_of, manifest_text
from bert_jax.pods.shell import call, need_program, say, shown


def run_gke(job: Job, options: GkeConfig) -> int:
    """Submit the job to the cluster of the current kubectl context, or delete it; return 0.

    Raises:
      UserError: the options cannot work, or kubectl reports a failure.
    """
    _check(job, options)
    where = f"--namespace={options.namespace}"
    apply = ["kubectl", "apply", where, "--filename=-"]
    objects = ["jobset", *(["configmap"] if job.file else [])]
    delete = [["kubectl", "delete", kind, options.name, where, "--ignore-not-found"] for kind in objects]
    text = manifest_text(job, options)
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


def _check(job: Job, options: GkeConfig) -> None:
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
