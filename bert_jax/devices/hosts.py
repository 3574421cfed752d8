"""Agreement between the hosts of one job on values, settings and failures; with a single process, nothing happens.

All of it goes through JAX's coordination service and not through the devices: if hosts have different meshes, versions
or numbers of devices, which is to be detected here, a collective hangs or computes something different on each of them.
"""

import functools
import itertools
import json
import re
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

import jax
from absl import logging
from jax._src.distributed import global_state  # it has no public name; Orbax takes it from here too

from bert_jax.config.json_form import differences, is_among
from bert_jax.devices import peers
from bert_jax.devices.software import sources, versions
from bert_jax.errors import UserError, is_of_cloud_storage

PATIENCE_SECONDS = 3600
"""One host may copy a large store while the others wait; one that has died is noticed sooner (peers.py)."""
WARNING_SECONDS = 30
FLAGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable")
"""Settings of JAX that change numbers, and that the environment of a single host may set."""

P = ParamSpec("P")
R = TypeVar("R")

_meetings = itertools.count()  # all hosts take part in all meetings, in the same order


class Ended(UserError):
    """Raised on every host: the hosts differ, or one of them has failed."""


def from_first(value: R) -> R:
    """Return `value` of the first host, on every host; it may be anything that JSON can represent.

    Use it for what is read from a file that the first host writes: on a network file system the other hosts may still
    see the past, and hosts that decide differently wait for each other forever.

    Raises:
      Ended: another host has failed; see `ending_together`.
    """
    return value if global_state.num_processes == 1 else _meet("from_first", value, lambda values: values[0])


def any_failure(problem: str | None) -> str | None:
    """Return the same verdict on every host: this host's own problem, or else that of the first host that has one."""
    if global_state.num_processes == 1:
        return problem
    found = _meet(
        "any_failure",
        problem,
        lambda values: next((f"host {host}: {value}" for host, value in enumerate(values) if value is not None), None),
    )
    return found if problem is None else problem


def decide(value: Any, choose: Callable[[list[Any]], R]) -> R:
    """Return `choose` of the values of all hosts, in their order, on every host; JSON represents them and the result.

    Raises:
      Ended: another host has failed.
    """
    return choose([value]) if global_state.num_processes == 1 else _meet("decide", value, choose)


def check_alike(facts: Callable[[], dict[str, Any]], own: tuple[str, ...] = ()) -> None:
    """Raise on every host unless all of them run the same thing: `facts()`, code, versions and JAX's number formats.

    Args:
      facts: returns a nested dict of JSON types (resolved options, fingerprints); only called if there are several
        hosts.
      own: dotted names of facts in which hosts may differ; a name that ends in a dot includes everything below it.

    Raises:
      Ended: hosts differ (the message names the first difference, both values and the host), or another host has
        failed.
    """
    if global_state.num_processes == 1:
        return
    flags = {name: getattr(jax.config, name) for name in FLAGS}
    software = {"jax": flags, "versions": versions(), "code": sources()}
    _meet("check_alike", {**facts(), **software}, lambda values: refuse_differences(values, own))


def refuse_differences(facts: list[dict[str, Any]], own: tuple[str, ...] = ()) -> None:
    """Raise `Ended` for the first fact, not among `own`, in which a host (an index of the list) differs from host 0."""
    for host, other in enumerate(facts):
        for line in differences(facts[0], other):
            name, change = line.split(": ", 1)
            if not is_among(name, own):
                first, second = change.split(" → ", 1)
                raise Ended(
                    f"the hosts do not run the same thing: {name} is {first} on host 0 and {second} on host {host}. "
                    "Start the same command on every host, with the same data, code and library versions"
                )


def ending_together(run: Callable[P, R]) -> Callable[P, R]:
    """Decorate a run so that an exception that ends it on one host is raised on the others at their next meeting.

    They meet in the functions above: before anything is written, when the work directory is taken, and at every save.
    An exception that is nobody's mistake (a collective operation that failed, a bug) ends the processes of all hosts at
    once, wherever they are, if they watch each other: those in a collective operation would never come to a meeting.
    """

    @functools.wraps(run)
    def wrapped(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return run(*arguments, **options)
        except Ended:
            raise
        except BaseException as error:
            if peers.is_watching() and isinstance(error, Exception) and not isinstance(error, UserError | OSError):
                _end_all(error)
            if global_state.num_processes > 1:
                _tell(f"host {global_state.process_id} has stopped: {str(error) or type(error).__name__}")
            raise

    return wrapped


def _end_all(error: Exception) -> NoReturn:
    """End all hosts because of `error`, with a traceback unless another host or the network is the cause."""
    line = f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.300}"
    if re.search("Gloo|NCCL|UNAVAILABLE|ABORTED|CANCELLED|Connection|Socket closed", str(error)):
        peers.end_all(f"a collective operation has failed, probably because a host has died ({line})", is_effect=True)
    if is_of_cloud_storage(error):
        found = " ".join(str(error).split())[:300]
        remedy = "check the name of the bucket, the network and the credentials of every host"
        peers.end_all(f"Google Cloud Storage: {found}; {remedy}", stacks=False)
    traceback.print_exception(error)
    peers.end_all(line)


def _meet(kind: str, value: Any, conclude: Callable[[list[Any]], Any]) -> Any:
    """Return, on every host, the result of `conclude` on the values of all hosts, which the first host calls.

    Waits for all hosts.

    Raises:
      Ended: `conclude` raised it, or a host has failed on its way here, or is in a different meeting.
    """
    meeting, me = next(_meetings), global_state.process_id
    _put(meeting, me, {"kind": kind, "value": value})
    if me == 0:
        try:
            verdict = {"value": conclude([_entry(meeting, host, kind) for host in range(global_state.num_processes)])}
        except Ended as error:
            verdict = {"error": str(error)}
        _put(meeting, "verdict", verdict)
    verdict = _get(meeting, "verdict", 0)
    if "error" in verdict:
        raise Ended(verdict["error"])
    return verdict["value"]


def _entry(meeting: int, host: int, kind: str):
    """Return the value that `host` has brought to a meeting."""
    entry = _get(meeting, host, host)
    if "error" in entry:
        raise Ended(entry["error"])
    if entry["kind"] != kind:
        raise Ended(
            f"the hosts do not run the same thing: host 0 is in {kind}, host {host} in {entry['kind']}. Start the same "
            "command on every host, with the same kinds of files"
        )
    return entry["value"]


def _tell(error: str) -> None:
    """Leave `error` for the next meeting, which this host will not attend."""
    meeting = next(_meetings)
    try:
        _put(meeting, global_state.process_id, {"error": error})
        if global_state.process_id == 0:
            _put(meeting, "verdict", {"error": error})
    except Ended as failure:  # the service has ended, and with it the other hosts
        logging.warning("the other hosts could not be told: %s", failure)


def _client():
    assert global_state.client is not None  # these are several processes
    return global_state.client


def _put(meeting: int, name: int | str, entry: dict[str, Any]) -> None:
    try:
        _client().key_value_set(f"bert_jax/{meeting}/{name}", json.dumps(entry))
    except jax.errors.JaxRuntimeError as error:
        raise Ended(f"the first host cannot be reached: {str(error).splitlines()[0]}") from None


def _get(meeting: int, name: int | str, host: int) -> dict[str, Any]:
    """Wait for the entry of `host`."""
    for waited in range(WARNING_SECONDS, PATIENCE_SECONDS + 1, WARNING_SECONDS):
        try:
            return json.loads(_client().blocking_key_value_get(f"bert_jax/{meeting}/{name}", WARNING_SECONDS * 1000))
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith("DEADLINE_EXCEEDED"):
                raise Ended(f"host {host} cannot be reached: {str(error).splitlines()[0]}") from None
            logging.warning("waiting for host %d, %d s so far", host, waited)
    raise Ended(f"host {host} was not ready after {PATIENCE_SECONDS // 60} minutes; see what it printed")
