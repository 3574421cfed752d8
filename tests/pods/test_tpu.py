"""The life of a TPU launch: a stub stands in for gcloud, and its workers run the real worker.sh."""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import types

import processes
import pytest
from command_lines import status, succeed
from processes import SECONDS, wait_until

from bert_jax import cli
from bert_jax.tools.pods import job, tpu

pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="worker.sh needs flock, as Linux has it")
STUB = pathlib.Path(__file__).parents[1] / "support" / "gcloud_stub.py"
UV = """#!/bin/bash
echo "$*" >> "$CLOUD/uv"
case $1 in venv) mkdir -p venv/bin && ln -s "$CLOUD/bin/gcloud" venv/bin/bert-jax ;; esac
"""
COMMAND = "launch tpu bert_tiny --name=pod --zone=us-central2-b --accelerator_type=v4-16 --spot"
RUN = ["--data.path=gs://b/a store", "--workdir=gs://b/run"]


def changes(calls: list[list[str]]) -> list[str]:
    """The calls that change something: create, delete, scp, and the words of worker.sh."""
    verbs = [re.search(r"worker.sh (\w+)", " ".join(call)) or call[4] for call in calls if call[3] != "tpu-vm"]
    verbs = [verb if isinstance(verb, str) else verb[1] for verb in verbs]
    return [verb for verb in verbs if verb not in ("describe", "ssh", "follow", "state")]


class Cloud:
    """What a test says of the cloud, and what it finds there."""

    def __init__(self, place: pathlib.Path):
        self.place = place

    def is_like(self, **world) -> None:
        (self.place / "world.json").write_text(json.dumps({"workers": 2, "creations": [["ACTIVE"]] * 9, **world}))

    @property
    def exists(self) -> bool:
        return bool(json.loads((self.place / "world.json").read_text()).get("seen"))

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.place / "calls").read_text().splitlines()]

    @property
    def verbs(self) -> list[str]:
        return changes(self.calls)

    def starts(self, worker: int = 0) -> int:
        counter = self.place / f"starts{worker}"
        return len(counter.read_text()) if counter.exists() else 0


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    place = tmp_path / "cloud"
    for name in ("bin", "worker_bin"):
        (place / name).mkdir(parents=True)
    stub = f"#!{sys.executable} -SE\n" + STUB.read_text()
    for name, text in (("bin/gcloud", stub), ("worker_bin/uv", UV), ("worker_bin/python3", "#!/bin/sh\n")):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    (place / "calls").write_text("")
    monkeypatch.setenv("CLOUD", str(place))
    monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")
    for name, seconds in (
        ("POLL_SECONDS", 0.05),
        ("LOOK_SECONDS", 0.05),
        ("SETTLE_SECONDS", SECONDS),  # how long the last worker takes to end is no concern of these tests
    ):
        monkeypatch.setattr(tpu, name, seconds)
    monkeypatch.setattr(job, "FIRST_SECONDS", 0.0)
    yield Cloud(place)
    for pid in place.glob("slice*/*/*/pid"):  # a run that a test has left, or that a failed test could not end
        subprocess.run(["pkill", "-KILL", "--pgroup", pid.read_text().strip()])


@pytest.fixture
def launch(tmp_path):
    (tmp_path / "bert_jax-0.1.0-py3-none-any.whl").write_bytes(b"wheel")
    wheel = f"--wheel={tmp_path / 'bert_jax-0.1.0-py3-none-any.whl'}"
    return lambda *words: cli._run(["bert-jax", *COMMAND.split(), *RUN, wheel, *words])


class Gcloud:
    """`gcloud` and two workers as functions of this process; of `cloud` they are programs.

    A request goes through `queue`. Each start of a run ends as `ends` says in turn: with an exit code of all workers,
    or with None, when the slice is taken away.
    """

    def __init__(self, queue: list[str], ends: list[int | None], refused: str = ""):
        self.calls: list[list[str]] = []
        self._queue, self._ends, self._refused = queue, ends, refused
        self._seen: list[str] = []  # what looks at the request will see; the last one stays
        self._started, self._words = -1, ""

    @property
    def exists(self) -> bool:
        return bool(self._seen)

    @property
    def verbs(self) -> list[str]:
        return changes(self.calls)

    def run(self, words: list[str], **unused: object) -> subprocess.CompletedProcess:
        self.calls.append(list(words))
        code, said = self._answer(words)
        return subprocess.CompletedProcess(words, code, *((said, "") if code == 0 else ("", f"ERROR: (gcloud) {said}")))

    @contextlib.contextmanager
    def follow(self, words: list[str], **unused: object):
        yield types.SimpleNamespace(stdout=self.run(words).stdout.splitlines(keepends=True))

    def _answer(self, words: list[str]) -> tuple[int, str]:
        kind, verb = words[3:5]
        if kind == "tpu-vm":
            return 0, json.dumps({"networkEndpoints": [{}, {}]})
        if verb == "describe":
            if not self.exists:
                return 1, "NOT_FOUND: Resource 'pod' was not found"
            state, *later = self._seen
            self._seen = later if later or state == "DELETING" else [state]
            return 0, json.dumps({"state": {"state": state}})
        if verb == "create":
            self._seen = [] if self._refused else list(self._queue)
            return int(bool(self._refused)), self._refused
        if verb == "delete":
            self._seen = ["DELETING"]
            return 0, ""
        if self._seen[:1] != ["ACTIVE"]:
            return 1, "the TPU is not READY"
        (command,) = (word for word in words if word.startswith("--command=")) if verb == "ssh" else ["scp"]
        return 0, self._worker(*command.partition("worker.sh ")[2].split(" ", 1))

    def _worker(self, verb: str, words: str = "") -> str:
        if verb == "start":
            self._started, self._words = self._started + 1, words
        elif verb == "follow":
            if self._ends[self._started] is None:
                self._seen = ["SUSPENDING", "SUSPENDED"]
            return f"1\tstart {self._started} of worker 0: bert-jax {' '.join(shlex.split(self._words))}\n"
        elif verb == "state":
            return "".join(f"bert_jax worker w-{each}: ended {self._ends[self._started]}\n" for each in range(2))
        return ""


@pytest.fixture
def gcloud(monkeypatch):
    """Put a `Gcloud` in the place of the program."""

    def there(*about: object, **options: str) -> Gcloud:
        found = Gcloud(*about, **options)
        programs = types.SimpleNamespace(run=found.run, Popen=found.follow, DEVNULL=None, PIPE=None)
        monkeypatch.setattr(job, "subprocess", programs)
        monkeypatch.setattr(job, "need_program", lambda *unused: None)
        return found

    for module, name in ((tpu, "POLL_SECONDS"), (tpu, "LOOK_SECONDS"), (job, "FIRST_SECONDS")):
        monkeypatch.setattr(module, name, 0.0)
    return there


SET_UP = ["create", "scp", "install", "start"]
QUEUE = ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]


def preempted_once(cloud: Gcloud | Cloud, launch, capsys) -> list[str]:
    """Return the lines of a launch that gets its slice twice, and check that it made the calls for that."""
    assert launch() == 0
    assert cloud.verbs == [*SET_UP, "delete", *SET_UP, "stop", "delete"] and not cloud.exists
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith(("==", "start 0"))]


PREEMPTED_ONCE = [
    *(f"pod: {state}" for state in ("requested", *QUEUE[:2])),
    "pod was taken away; restart 1 of at most 10 in 0 s",
    "pod: SUSPENDED",
    *(f"pod: {state}" for state in ("requested", *QUEUE[:2])),
    "start 1 of worker 0: bert-jax pretrain bert_tiny --data.path=gs://b/a store --workdir=gs://b/run",
    "the run has ended: exit code 0 (finished)",
    "pod is deleted",
]


def test_from_the_queue_over_a_preemption_to_the_end(gcloud, launch, capsys):
    assert preempted_once(gcloud(QUEUE, [None, 0]), launch, capsys) == PREEMPTED_ONCE


@pytest.mark.slow
def test_from_the_queue_to_the_end_with_programs(cloud, launch, capsys):
    cloud.is_like(creations=[QUEUE, QUEUE], starts=[["hang", "preempt"], ["exit 0", "exit 0"]])
    assert preempted_once(cloud, launch, capsys) == PREEMPTED_ONCE


@pytest.mark.slow
def test_every_worker_gets_the_same_wheel_and_lock(cloud, launch, tmp_path):
    cloud.is_like(starts=[["finish", "finish"]])
    (cloud.place / "go").touch()
    assert launch("--keep") == 0
    homes = sorted(cloud.place.glob("slice0/*/bert_jax-pod"))
    assert len(homes) == 2
    for home in homes:
        assert (home / "bert_jax-0.1.0-py3-none-any.whl").read_bytes() == b"wheel"
        assert (home / "requirements.txt").read_bytes() == (job.PACKAGE / "tools/pods/requirements.txt").read_bytes()
    installs = (cloud.place / "uv").read_text().splitlines()
    assert sum("--require-hashes --requirements requirements.txt" in line for line in installs) == 2
    assert sum("--no-deps ./bert_jax-0.1.0-py3-none-any.whl" in line for line in installs) == 2


@pytest.mark.slow
def test_a_crash_ends_what_is_left_and_starts_again_on_the_same_slice(cloud, launch, capsys, monkeypatch):
    monkeypatch.setattr(tpu, "SETTLE_SECONDS", 0.0)
    cloud.is_like(starts=[["exit 75", "hang"], ["exit 0", "exit 0"]])
    assert launch() == 0
    assert cloud.verbs == [*SET_UP, "stop", "last", *SET_UP[1:], "stop", "delete"]
    assert (cloud.place / "uv").read_text().count("--no-deps") == 2  # once on each worker
    printed = capsys.readouterr().out
    assert "exit code 75 (a host died or hung); restart 1 of at most 10" in printed
    assert "1 of 2 workers have not ended" in printed
    assert "[w-0] start 0 of worker 0" in printed and "[w-1] saved" in printed  # the last lines of both


@pytest.mark.slow
def test_bad_input_is_not_started_again(cloud, launch, capsys):
    cloud.is_like(starts=[["exit 2", "exit 2"]])
    assert launch() == 2
    assert cloud.starts() == cloud.starts(1) == 1 and not cloud.exists
    assert "the run has ended: exit code 2 (bad input)" in capsys.readouterr().out


@pytest.mark.slow
def test_failures_in_a_row_are_bounded(cloud, launch, capsys):
    cloud.is_like(starts=[["exit 1", "exit 0"]])
    assert launch("--max_restarts=2") == 1
    assert cloud.starts() == 3 and not cloud.exists
    assert "not started again, after 2 restarts in a row" in capsys.readouterr().out


@pytest.mark.slow
def test_a_request_that_fails_is_made_again(cloud, launch, capsys):
    cloud.is_like(creations=[["FAILED"], ["ACTIVE"]], reason="no capacity", starts=[["exit 0", "exit 0"]])
    assert launch() == 0
    assert "the request for pod has failed: no capacity; restart 1" in capsys.readouterr().out
    assert cloud.verbs[:3] == ["create", "delete", "create"]


def test_a_request_that_is_refused_is_one_line(gcloud, launch, capsys):
    cloud = gcloud([], [], refused="RESOURCE_EXHAUSTED: Quota limit 'TPUV4sPreemptible' has been exceeded.\n")
    assert launch() == 2
    said = capsys.readouterr().err
    assert said.startswith("error: gcloud compute tpus queued-resources create … failed with exit code 1: ERROR: ")
    assert "Quota limit 'TPUV4sPreemptible'" in said and said.count("\n") == 1 and cloud.verbs == ["create"]


def followed(cloud) -> int:
    """How often a launch has begun to show the log."""
    return sum("follow" in word for call in cloud.calls for word in call)


def interrupted(launch, until) -> int:
    """Launch, press Ctrl-C as soon as `until()` holds, and return the exit code."""
    sender = threading.Thread(target=lambda: (wait_until(until), os.kill(os.getpid(), signal.SIGINT)))
    sender.start()
    try:
        return launch()
    finally:
        sender.join()


@pytest.mark.slow
def test_the_same_launch_again_joins_the_run(cloud, launch, capsys):
    cloud.is_like(starts=[["finish", "finish"]])
    assert interrupted(launch, lambda: followed(cloud)) == 130
    assert "detached: pod continues." in capsys.readouterr().out and cloud.exists
    finish = threading.Thread(target=lambda: (wait_until(lambda: followed(cloud) == 2), (cloud.place / "go").touch()))
    finish.start()
    assert launch() == 0
    finish.join()
    assert "start 0 of worker 0: bert-jax pretrain bert_tiny" in capsys.readouterr().out
    assert cloud.starts() == cloud.starts(1) == 1 and not cloud.exists


@pytest.mark.slow
def test_a_worker_that_has_finished_takes_part_in_the_restart(cloud, launch):
    """Left out, it would let the others wait for it."""
    cloud.is_like(starts=[["exit 0", "exit 1"], ["exit 0", "exit 0"]])
    assert launch() == 0
    assert cloud.starts() == cloud.starts(1) == 2


@pytest.mark.slow
def test_another_command_on_the_same_slice_is_refused(cloud, launch, capsys):
    cloud.is_like(starts=[["finish", "finish"]])
    interrupted(launch, lambda: followed(cloud))
    assert launch("--steps=5") == 2
    assert "pod runs another command; give another --name" in capsys.readouterr().err
    assert cloud.exists and cloud.starts() == 1
    assert launch("--teardown") == 0
    assert not cloud.exists


@pytest.mark.slow
def test_teardown_lets_the_run_save(cloud, launch):
    cloud.is_like(starts=[["hang", "hang"]])
    interrupted(launch, lambda: followed(cloud) and cloud.starts() == cloud.starts(1) == 1)
    assert launch("--teardown") == 0
    assert cloud.verbs[-2:] == ["stop", "delete"] and not cloud.exists
    assert (cloud.place / "saved0").exists() and (cloud.place / "saved1").exists()
    assert launch("--teardown") == 0  # there is nothing left
    assert cloud.verbs[-1] == "delete" and cloud.verbs.count("delete") == 1


@pytest.mark.slow
def test_a_dry_run_prints_every_command_that_a_launch_makes(cloud, launch, capsys):
    cloud.is_like(creations=[["SUSPENDED"], ["ACTIVE"]], starts=[["exit 1", "exit 0"], ["exit 0", "exit 0"]])
    assert launch("--dry_run") == 0
    assert cloud.calls == []
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert launch() == 0
    made = [[re.sub(r"follow \d+", "follow 0", word) for word in call] for call in cloud.calls]
    printed = list(map(shlex.split, lines))
    assert [call for call in made if call not in printed] == []
    assert [words for words in printed if words not in made] == []


@pytest.mark.slow
def test_a_configuration_file_travels_to_the_workers(cloud, launch, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from bert_jax import Config\ndef get_config(): return Config()\n")
    cloud.is_like(starts=[["exit 0", "exit 0"]])
    words = COMMAND.replace("bert_tiny", str(tmp_path / "mine.py")).split()
    wheel = f"--wheel={tmp_path / 'bert_jax-0.1.0-py3-none-any.whl'}"
    succeed(*words, *RUN, wheel, "--keep")
    homes = list(cloud.place.glob("slice0/*/bert_jax-pod"))
    assert len(homes) == 2
    for home in homes:
        assert (home / "mine.py").read_text() == (tmp_path / "mine.py").read_text()
        assert "pretrain\nmine.py\n" in (home / "words").read_text()


def test_several_slices_are_one_request(cloud, launch, capsys):
    assert launch("--slices=2", "--mesh.slice=2", "--dry_run") == 0
    printed = capsys.readouterr().out
    assert "--node-count=2 --node-prefix=pod" in printed and "--node-id" not in printed
    assert "tpu-vm describe pod-0" in printed and "tpu-vm describe pod-1" in printed


@pytest.mark.parametrize(
    "words, message",
    [
        (["--name=Pod"], "--name=Pod must be at most 40 lower-case letters"),
        (["--zone=us-central2"], "--zone=us-central2 is not a zone of Google Cloud, such as us-central2-b"),
        (["--accelerator_type=v9-8"], "--accelerator_type=v9-8 is not one that queued resources know"),
        (["--accelerator_type=tpu7x-16"], "TPU7x and later are on GKE only"),
        (["--slices=0"], "--slices=0 must be at least 1"),
        (["--slices=2"], "--slices=2 but mesh.slice=1; add --mesh.slice=2"),
        (
            ["--workdir=runs/x"],
            "--workdir=runs/x is not in a bucket: a TPU VM and its disk are gone after a preemption",
        ),
        (["--data.path=store"], "--data.path=store is a path of this machine, which the workers cannot read"),
        (["--init_from=model"], "--init_from=model is a path of this machine"),
        (["--wheel=nothing.whl"], "--wheel=nothing.whl is not a wheel"),
        (["--acelerator_type=v4-8"], "unknown option --acelerator_type; perhaps you meant --accelerator_type"),
        (["--model.num_heads=5"], "is not divisible by model.num_heads=5"),
        (["--spot=maybe"], "--spot"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_input_is_refused_before_anything_is_called(cloud, launch, words, message, capsys):
    assert launch(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1
    assert cloud.calls == []


def test_required_options_and_gcloud_are_asked_for(launch, monkeypatch, capsys, tmp_path):
    assert status(*"launch tpu bert_tiny --data.path=gs://b/s --workdir=gs://b/r".split()) == 2
    assert "give the required --name and --zone and --accelerator_type" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch() == 2
    assert "gcloud is not installed, or not on PATH; install the Google Cloud CLI" in capsys.readouterr().err


def test_without_a_wheel_one_is_built_from_the_checkout(capsys):
    succeed(*COMMAND.split(), *RUN, "--dry_run")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " pip wheel " in line]
    assert line.endswith(str(job.PACKAGE.parent)) and importlib.util.find_spec("hatchling")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_itself_knows_every_command_and_option(launch, capsys, tmp_path, monkeypatch):
    """`gcloud meta lint-gcloud-commands` parses commands with gcloud's own definitions, without a network."""
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "empty"))
    for words in ([], ["--slices=2", "--mesh.slice=2", "--service_account=a@b", "--project=p"]):
        assert launch(*words, "--dry_run") == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("gcloud")]
    kinds = {(*line.split()[3:5], "--project" in line): line for line in printed}  # ssh is ssh, whatever it sends
    lines = list(kinds.values())
    assert {kind[1] for kind in kinds} == {"describe", "create", "ssh", "scp", "delete"}
    verdicts = [lint(line) for line in ("gcloud compute tpus queued-resources delete x --zoone=y", *lines)]
    assert [verdict["success"] for verdict in verdicts] == [False] + [True] * len(lines), verdicts


def lint(line: str) -> dict:
    done = processes.run("gcloud", "meta", "lint-gcloud-commands", f"--command-string={line}")
    (verdict,) = json.loads(done.stdout)
    return {name: verdict.get(name) for name in ("success", "error_message")}
