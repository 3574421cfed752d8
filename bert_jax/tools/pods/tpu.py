"""`bert-jax launch tpu`: from a queued resource to a finished run, over preemptions and crashes.

A queued resource of Cloud TPU is one or several slices, which are requested, waited for, reached by ssh, and deleted.
States and commands: cloud.google.com/tpu/docs/queued-resources.
"""

import contextlib
import json
import pathlib
import re
import shlex
import time
from collections.abc import Iterator, Sequence

from bert_jax.config.commands import TpuConfig
from bert_jax.errors import UserError
from bert_jax.tools.pods import job as jobs

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
    """The queued resource that the options of a launch name."""

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
            answer = json.loads(jobs.call(self.describe_words()))
        except jobs.CallError as error:
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
                jobs.say(f"{self._options.name}: {state or 'requested'}")
            if state is None:
                jobs.call(self.create_words())
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
            jobs.call(self.delete_words())
        while self.state()[0] is not None:
            time.sleep(POLL_SECONDS)

    def ssh(self, command: str) -> str:
        """Run a command on the workers; return what they printed to their standard output."""
        return jobs.call(self.ssh_words(command))

    def copy(self, files: Sequence[pathlib.Path], directory: str) -> None:
        """Copy files to a directory, below the home directory, of every worker."""
        jobs.call(self.copy_words(files, directory))

    def workers(self) -> int:
        """Return the number of workers of all slices."""
        nodes = [json.loads(jobs.call(self.node_words(node))) for node in range(self._options.slices)]
        return sum(len(node["networkEndpoints"]) for node in nodes)


class Refused(Exception):
    """Raised when a request for a slice was accepted and has then failed."""


SETTLE_SECONDS = 120.0
"""How long the other workers may take to end after the first worker has."""
LOOK_SECONDS = 10.0
LAST_LINES = 20
"""Lines of the log of a worker that has failed, which are shown."""
OTHER_RUN = "runs something else"
"""Part of what worker.sh says if it is to start a second run."""
LOST = 137
"""Exit code of a run that has ended without one: the machine has restarted, or the run was killed."""


def run_tpu(job: jobs.Job, options: TpuConfig) -> int:
    """Run the job on the slice that the options name until it ends for good; return its exit code.

    Returns:
      0 when it has finished, 2 for bad input on the workers, 130 when Ctrl-C has detached this launch from a run that
      continues, else the exit code after which no restart was left.

    Raises:
      UserError: the options cannot work, or gcloud refuses them.
    """
    _check(job, options)
    launch = _Launch(job, options)
    if options.dry_run:
        for comment, words in launch.steps():
            print(f"# {comment}", *map(jobs.shown, words), sep="\n")
        return 0
    jobs.need_program("gcloud", "install the Google Cloud CLI (cloud.google.com/sdk/docs/install) and run gcloud init")
    if options.teardown:
        launch.end()
        return 0
    try:
        code, over = launch.run()
    except KeyboardInterrupt:
        jobs.say(f"\ndetached: {options.name} continues. The same command shows its log again; --teardown ends it")
        return 130
    if options.keep or not over:
        jobs.say(f"{options.name} is kept, and paid for, until the same command with --teardown deletes it")
    else:
        launch.end()
    return code


def _check(job: jobs.Job, options: TpuConfig) -> None:
    jobs.need_name(options.name)
    if not re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z]", options.zone):
        raise UserError(f"--zone={options.zone} is not a zone of Google Cloud, such as us-central2-b")
    default_runtime(options.accelerator_type)
    jobs.at_least(options, slices=1, max_restarts=0)
    job.need_slices(options.slices)
    job.need_bucket("a TPU VM and its disk are gone after a preemption")


class _Launch:
    """A job on the slices of a queued resource."""

    def __init__(self, job: jobs.Job, options: TpuConfig):
        self.resource = QueuedResource(options)
        self._options = options
        self._directory = f"bert_jax-{options.name}"  # below the home directory of each worker
        self._wheel, self._build = jobs.find_wheel(options.wheel)
        beside = [jobs.PACKAGE / "tools" / "pods" / "worker.sh", jobs.PACKAGE / "tools" / "pods" / "requirements.txt"]
        self._files = [self._wheel, *beside, *([job.file] if job.file else [])]
        self._words = job.words_elsewhere()
        self._restarts = jobs.Restarts(options.max_restarts, jobs.say)
        self._acquired = False
        self._lines = 0  # of the first worker's log that have been shown

    def _worker(self, *words: str) -> str:
        return shlex.join(["bash", f"{self._directory}/worker.sh", *words])

    @property
    def _prepare(self) -> str:
        return f"mkdir -p {self._directory} && rm -f {self._directory}/*.whl"

    def steps(self) -> Iterator[tuple[str, list[list[str]]]]:
        """Yield every step of a launch as a comment and its commands, in the order of a launch without a failure."""
        resource = self.resource
        yield (
            "The slice: is there one of this name? If not, request it, and look again until it is ACTIVE.",
            [resource.describe_words(), resource.create_words()],
        )
        yield (
            "The same code and libraries on every worker.",
            [
                *([self._build] if self._build else []),
                resource.ssh_words(self._prepare),
                resource.copy_words(self._files, self._directory),
                resource.ssh_words(self._worker("install")),
            ],
        )
        yield (
            "The run, which continues when the connection ends. The second command shows the log of the first worker.",
            [
                resource.ssh_words(self._worker("start", *self._words)),
                resource.ssh_words(self._worker("follow", "0"), worker="0"),
            ],
        )
        yield (
            "How it has ended: on every worker, and the number of workers that have to answer.",
            [
                resource.ssh_words(self._worker("state")),
                *(resource.node_words(node) for node in range(self._options.slices)),
            ],
        )
        yield (
            "After a failure: the reason, and the workers that are left. Then the run is started again, and resumes.",
            [resource.ssh_words(self._worker("last", str(LAST_LINES))), resource.ssh_words(self._worker("stop"))],
        )
        yield "After a preemption, before everything begins again; and at the end.", [resource.delete_words()]

    def run(self) -> tuple[int, bool]:
        """Run the job over all restarts; return its exit code, and whether the run is known to be over."""
        if self._build:
            jobs.call(self._build)
        while True:
            try:
                code, why = self._attempt()
                over = True
            except Refused as error:
                code, why, over = 1, str(error), True
            except jobs.CallError as error:
                if not self._acquired:  # nothing has worked yet: options, permissions, quota
                    raise
                code, why, over = self._unreachable(error)
            if code in jobs.FINAL:
                jobs.say(f"the run has ended: {why}")
                return code, over
            if not self._restarts.wait(why):
                return code, over

    def end(self) -> None:
        """End the run, if there is one, and delete the slice."""
        if self.resource.state()[0] == "ACTIVE":
            with contextlib.suppress(jobs.CallError):  # a slice that cannot be reached is deleted all the same
                self.resource.ssh(self._worker("stop"))
        self.resource.delete()
        jobs.say(f"{self._options.name} is deleted")

    def _attempt(self) -> tuple[int, str]:
        """Start the run, or join it where it is running; return its exit code and what it says."""
        if self.resource.acquire():
            self._lines = 0  # a new slice has a new log
        self._acquired = True
        self.resource.ssh(self._prepare)
        self.resource.copy(self._files, self._directory)
        self.resource.ssh(self._worker("install"))
        self._start()
        self._restarts.begin()
        while True:
            follow = self._worker("follow", str(self._lines + 1 if self._lines else 0))
            jobs.stream(self.resource.ssh_words(follow, worker="0"), self._show)
            states = self._settled()
            if "running" not in states:
                break
            time.sleep(LOOK_SECONDS)
        codes = [int(state.split()[-1]) if state.startswith("ended") else LOST for state in states]
        failed = [code for code in codes if code]
        code = next((code for code in jobs.FINAL[1:] if code in failed), failed[0] if failed else 0)
        if failed and code != jobs.PREEMPTED:
            jobs.say(self.resource.ssh(self._worker("last", str(LAST_LINES))).rstrip())
        return code, jobs.meaning(code)

    def _start(self) -> None:
        try:
            self.resource.ssh(self._worker("start", *self._words))
        except jobs.CallError as error:
            if OTHER_RUN in error.said:
                raise UserError(
                    f"{self._options.name} runs another command; give another --name, or end that with --teardown"
                ) from None
            raise

    def _settled(self) -> list[str]:
        """Return the state of every worker: all running, or none, some time after the first has ended."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            states = self._states()
            running = states.count("running")
            if running in (0, len(states)):
                return states
            if time.monotonic() > deadline:
                jobs.say(f"{running} of {len(states)} workers have not ended; they are ended now")
                self.resource.ssh(self._worker("stop"))
                return ["lost" if state == "running" else state for state in states]
            time.sleep(LOOK_SECONDS)

    def _states(self) -> list[str]:
        """Return what every worker says of its run."""
        printed = self.resource.ssh(self._worker("state"))
        states = re.findall(r"^bert_jax worker \S+: (running|absent|lost|ended \d+)$", printed, re.MULTILINE)
        if len(states) != (workers := self.resource.workers()):
            raise jobs.CallError(["ssh to all workers"], 0, f"{len(states)} of {workers} workers have answered")
        return states

    def _unreachable(self, error: jobs.CallError) -> tuple[int, str, bool]:
        """Return what a failed command means: a preemption, or a slice that cannot be reached for now."""
        try:
            state, _ = self.resource.state()
        except jobs.CallError:
            return 1, str(error), False
        if state is None or state in GONE:
            return jobs.PREEMPTED, f"{self._options.name} was taken away", True
        return 1, str(error), False

    def _show(self, line: str) -> None:
        """Print a line of the log, unless it was: gcloud repeats a command when its connection breaks."""
        number, _, text = line.partition("\t")
        if number.isdigit() and int(number) > self._lines:
            self._lines = int(number)
            jobs.say(text)
