"""`gcloud` for tests of `bert-jax launch tpu`: a queued resource whose workers are directories of this machine.

A test writes $CLOUD/world.json and puts this file on PATH as gcloud. It takes the commands of queued resources and no
others, with the options that the real one takes, keeps a list of its calls, and runs what is sent by ssh, for real, in
the home directory of each worker. World:

  creations   for each creation, the states that the following looks at the request see; the last one stays
  starts      for each start of a run, what each worker does: see `bert_jax`; the last one stays
  workers     number of workers of a slice
  refuses     what creations say that are refused at once
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

CLOUD = pathlib.Path(os.environ["CLOUD"])
OPTIONS = {
    "describe": ["format"],
    "create": ["node-id", "node-count", "node-prefix", "accelerator-type", "runtime-version", "service-account"],
    "ssh": ["node", "worker", "ssh-flag", "command"],
    "scp": ["node", "worker"],
    "delete": [],
}
FLAGS = {"create": ["spot", "quiet"], "ssh": ["quiet"], "scp": ["quiet"], "delete": ["force", "quiet"]}


def fail(message: str, code: int = 1) -> None:
    print(f"ERROR: (gcloud) {message}", file=sys.stderr)
    sys.exit(code)


def read() -> dict:
    return json.loads((CLOUD / "world.json").read_text())


def write(world: dict) -> None:
    partial = CLOUD / f"world.{os.getpid()}"
    partial.write_text(json.dumps(world))
    partial.rename(CLOUD / "world.json")


def homes(world: dict) -> list[pathlib.Path]:
    return [CLOUD / f"slice{world['created']}" / f"worker{number}" for number in range(world["workers"])]


def end_runs(world: dict) -> None:
    """The machines are gone, and everything that ran on them."""
    for home in homes(world):
        for pid in home.glob("*/pid"):
            try:
                os.killpg(int(pid.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(home, ignore_errors=True)


def describe(world: dict, given: argparse.Namespace) -> None:
    seen = world.get("seen", [])
    if not seen:
        fail(f"NOT_FOUND: Resource '{given.names[0]}' was not found")
    print(json.dumps({"state": {"state": seen[0], "failedData": {"error": {"message": world.get("reason", "")}}}}))
    if len(seen) > 1 or seen == ["DELETING"]:
        write({**world, "seen": seen[1:]})


def create(world: dict, given: argparse.Namespace) -> None:
    if world.get("seen"):
        fail("ALREADY_EXISTS")
    if "refuses" in world:
        fail(world["refuses"])
    assert (given.node_id is None) != (given.node_count is None) and given.accelerator_type and given.runtime_version
    created = world.get("created", -1) + 1
    write({**world, "created": created, "seen": world["creations"][created]})
    for home in homes({**world, "created": created}):
        home.mkdir(parents=True)


def reached(world: dict, given: argparse.Namespace) -> list[pathlib.Path]:
    if world.get("seen", [None])[0] != "ACTIVE":
        fail("the TPU is not READY")
    return homes(world) if given.worker == "all" else [homes(world)[int(given.worker)]]


def ssh(world: dict, given: argparse.Namespace) -> None:
    codes = []
    for number, home in enumerate(reached(world, given)):
        path = f"{CLOUD / 'worker_bin'}:{os.environ['PATH']}"
        environment = {**os.environ, "HOME": str(home), "HOSTNAME": f"w-{number}", "PATH": path, "WORKER": str(number)}
        codes.append(subprocess.run(["bash", "-c", given.command], cwd=home, env=environment).returncode)
    sys.exit(next(filter(None, codes), 0))


def scp(world: dict, given: argparse.Namespace) -> None:
    *files, (target) = given.names
    directory = target.partition(":")[2]
    for home in reached(world, given):
        for file in files:
            shutil.copy(file, home / directory)


def delete(world: dict, given: argparse.Namespace) -> None:
    assert given.force and given.quiet
    end_runs(world)
    write({**world, "seen": ["DELETING"]})


def starts(worker: int) -> int:
    """How often the run of a worker has been started, on all slices."""
    counter = CLOUD / f"starts{worker}"
    return len(counter.read_text()) if counter.exists() else 0


def bert_jax() -> None:
    """Stand in for a training run on a worker: `exit N`, `hang`, `finish` when $CLOUD/go exists, or `preempt`."""
    worker, world = int(os.environ["WORKER"]), read()
    number = starts(worker)
    signal.signal(signal.SIGTERM, lambda *_: ((CLOUD / f"saved{worker}").touch(), print("saved"), sys.exit(143)))
    (CLOUD / f"starts{worker}").write_text("x" * (number + 1))
    action, *code = world["starts"][min(number, len(world["starts"]) - 1)][worker].split()
    print(f"start {number} of worker {worker}: bert-jax {' '.join(sys.argv[1:])}", flush=True)
    while min(map(starts, range(world["workers"]))) <= number:  # no step is taken before all hosts are there
        time.sleep(0.02)
    if action == "preempt":
        write({**world, "seen": ["SUSPENDING", "SUSPENDED"]})
        end_runs(world)
    while action != "exit" and not (action == "finish" and (CLOUD / "go").exists()):
        time.sleep(0.02)
    sys.exit(*map(int, code))


def main() -> None:
    if pathlib.Path(sys.argv[0]).name == "bert-jax":
        bert_jax()
    with (CLOUD / "calls").open("a") as calls:
        calls.write(json.dumps(["gcloud", *sys.argv[1:]]) + "\n")
    *group, kind, verb = sys.argv[1:5]
    if group != ["compute", "tpus"] or kind not in ("queued-resources", "tpu-vm") or verb not in OPTIONS:
        fail(f"unknown command: {sys.argv[1:5]}", 2)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("names", nargs="+")
    for option in ("zone", "project", *OPTIONS[verb]):
        parser.add_argument(f"--{option}", action="append" if option == "ssh-flag" else "store")
    for flag in FLAGS.get(verb, []):
        parser.add_argument(f"--{flag}", action="store_true")
    given, world = parser.parse_args(sys.argv[5:]), read()
    if kind == "tpu-vm":
        print(json.dumps({"networkEndpoints": [{}] * world["workers"]}))
    else:
        globals()[verb](world, given)


if __name__ == "__main__":
    main()
