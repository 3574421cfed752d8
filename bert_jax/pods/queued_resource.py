"""A queued resource of Cloud TPU: one or several slices, asked for, waited for, reached by ssh, deleted.

States and commands: cloud.google.com/tpu/docs/queued-resources.
"""

import json
import pathlib
import re
import time
from collections.abc import Sequence

from bert_jax.config.launching import TpuConfig
from bert_jax.errors import UserError
from bert_jax.pods.shell import CallError, call, say

POLL_SECONDS = 30.0
"""Between two looks at a request that waits in the queue."""
REMIND_SECONDS = 600.0
"""Between two lines about a state that stays the same."""
GONE = ("SUSPENDING", "SUSPENDED", "DELETING")
"""States of a request whose slice was taken away."""

# The runtime that Google names for JAX: cloud.google.com/tpu/docs/runtimes.
RUNTIMES = (
    (r"v[234]-\d+", "tpu-ubuntu2204-base"),
    (r"v5litepod-\d+", "v2-alpha-tpuv5-lite"),
    (r"v5p-\d+", "v2-alpha-tpuv5"),
    (r"v6e-\d+", "v2-alpha-tpuv6e"),
)


def default_runtime(accelerator_type: str) -> str:
    """Return the runtime version for an accelerator type; raise a UserError about one that queued resources lack."""
    found = [runtime for pattern, runtime in RUNTIMES if re.fullmatch(pattern, accelerator_type)]
    if not found:
        raise UserError(
            f"--accelerator_type={accelerator_type} is not one that queued resources know: v4-32, v5litepod-16, "
            "v5p-64, v6e-16 and the like; TPU7x and later are on GKE only (bert-jax launch gke)"
        )
    return found[0]


class QueuedResource:
    """The queued resource that the options of a launch name.

    Args:
      options: what to ask for.
    """

    def __init__(self, options: TpuConfig):
        self._options = options

    # The words of every command.

    def _words(self, verb: str, *words: str) -> list[str]:
        where = [
            f"--zone={self._options.zone}",
            *([f"--project={self._options.project}"] * bool(self._options.project)),
        ]
        return ["gcloud", "compute", "tpus", "queued-resources", verb, *words, *where]

    def describe_words(self) -> list[str]:
        return [*self._words("describe", self._options.name), "--format=json"]

    def create_words(self) -> list[str]:
        options = self._options
        nodes = [f"--node-id={options.name}"]
        if options.slices > 1:
            nodes = [f"--node-count={options.slices}", f"--node-prefix={options.name}"]
        return [
            *self._words("create", options.name),
            *nodes,
            f"--accelerator-type={options.accelerator_type}",
            f"--runtime-version={options.runtime_version or default_runtime(options.accelerator_type)}",
            *(["--spot"] * options.spot),
            *([f"--service-account={options.service_account}"] * bool(options.service_account)),
            "--quiet",
        ]

    def delete_words(self) -> list[str]:
        return [*self._words("delete", self._options.name), "--force", "--quiet"]

    def ssh_words(self, command: str, worker: str = "all") -> list[str]:
        node = "all" if worker == "all" else "0"
        alive = ["--ssh-flag=-o ServerAliveInterval=15", "--ssh-flag=-o ServerAliveCountMax=4"]
        reach = [f"--node={node}", f"--worker={worker}", *alive, f"--command={command}", "--quiet"]
        return [*self._words("ssh", self._options.name), *reach]

    def copy_words(self, files: Sequence[pathlib.Path], directory: str) -> list[str]:
        where = ["--node=all", "--worker=all", "--quiet"]
        return [*self._words("scp", *map(str, files), f"{self._options.name}:{directory}/"), *where]

    def node_words(self, node: int) -> list[str]:
        name = self._options.name if self._options.slices == 1 else f"{self._options.name}-{node}"
        return [
            word.replace("queued-resources", "tpu-vm") for word in [*self._words("describe", name), "--format=json"]
        ]

    # What they do.

    def state(self) -> tuple[str | None, str]:
        """Return the state of the request, None if there is none, and the reason that a failed one gives."""
        try:
            answer = json.loads(call(self.describe_words()))
        except CallError as error:
            if "NOT_FOUND" in error.said:
                return None, ""
            raise
        state = answer.get("state", {})
        reason = state.get("failedData", {}).get("error", {}).get("message", "no reason is given")
        return state.get("state", "UNKNOWN"), reason

    def acquire(self) -> bool:
        """Wait for the slice in the queue; return whether it had to be requested, because there was none.

        Raises:
          Refused: the request has failed; it has been deleted.
          CallError: gcloud refuses to create it, or cannot be used.
        """
        requested, said, spoken = False, "", 0.0
        while True:
            state, reason = self.state()
            if state == "ACTIVE":
                return requested
            if str(state) != said or time.monotonic() - spoken > REMIND_SECONDS:
                said, spoken = str(state), time.monotonic()
                say(f"{self._options.name}: {state or 'requested'}")
            if state is None:
                call(self.create_words())
                requested = True
            elif state == "FAILED":
                self.delete()
                raise Refused(f"the request for {self._options.name} has failed: {reason}")
            elif state == "SUSPENDED":
                self.delete()
            time.sleep(POLL_SECONDS)

    def delete(self) -> None:
        """Delete the request and its slice, if there is one, and return when it is gone."""
        if self.state()[0] is None:
            return
        if self.state()[0] != "DELETING":
            call(self.delete_words())
        while self.state()[0] is not None:
            time.sleep(POLL_SECONDS)

    def ssh(self, command: str) -> str:
        """Run a command on the workers; return what they printed to their standard output."""
        return call(self.ssh_words(command))

    def copy(self, files: Sequence[pathlib.Path], directory: str) -> None:
        """Copy files to a directory, below the home directory, of every worker."""
        call(self.copy_words(files, directory))

    def workers(self) -> int:
        """Return the number of workers of all slices."""
        nodes = [json.loads(call(self.node_words(node))) for node in range(self._options.slices)]
        return sum(len(node["networkEndpoints"]) for node in nodes)


class Refused(Exception):
    """Raised when a request for a slice was accepted and has then failed."""
