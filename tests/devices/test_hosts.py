"""What hosts tell each other: comparisons of facts alone, the rest between two real processes."""

import dataclasses
import json
import sys

import pytest
from two_hosts import run_on_two_hosts

from bert_jax.config import Config, DataConfig, MeshConfig, OptimizerConfig, PhaseConfig
from bert_jax.config.json_form import differing_options, to_dict
from bert_jax.devices import hosts as peers
from bert_jax.devices.hosts import (
    Ended,
    any_failure,
    check_alike,
    ending_together,
    from_first,
    refuse_differences,
    sources,
)

CONFIG = Config(data=DataConfig(path="/data/store"))
OTHERS = {
    "seed is 0 on host 0 and 7 on host 2": {"seed": 7},
    "mesh.fsdp is 1 on host 0 and 2 on host 2": {"mesh": MeshConfig(fsdp=2)},
    "optimizer.name is adamw on host 0 and lamb on host 2": {"optimizer": OptimizerConfig(name="lamb")},
    "phases.0.batch_size is 256 on host 0 and 64 on host 2": {"phases": (PhaseConfig(batch_size=64),)},
    "data.held_out is 0.01 on host 0 and 0.1 on host 2": {"data": DataConfig(path="/elsewhere", held_out=0.1)},
}


@pytest.mark.parametrize("said", OTHERS)
def test_the_first_difference_is_named_with_both_values_and_the_host(said):
    facts = [to_dict(config) for config in (CONFIG, CONFIG, dataclasses.replace(CONFIG, **OTHERS[said]))]
    with pytest.raises(Ended, match=f"^the hosts do not run the same thing: {said}. Start the same command"):
        refuse_differences(facts, differing_options(Config))


def test_where_the_same_data_lie_and_how_they_are_read_may_differ():
    data = DataConfig(path="/mnt/copy", cache="/scratch", loader="plain", prefetch=1)
    facts = [to_dict(config) for config in (CONFIG, dataclasses.replace(CONFIG, data=data, init_from="/elsewhere"))]
    refuse_differences(facts, differing_options(Config))
    with pytest.raises(Ended, match="store_fingerprint is abc on host 0 and abd on host 1"):
        refuse_differences(
            [{**fact, "store_fingerprint": value} for fact, value in zip(facts, ("abc", "abd"))],
            differing_options(Config),
        )


def test_one_process_has_nobody_to_ask():
    check_alike(lambda: pytest.fail("facts were gathered for nobody"))
    assert from_first("value") == "value" and any_failure("problem") == "problem"


@pytest.mark.parametrize("library, stacks", [("tensorflow.python", False), ("jaxlib", True)])
def test_a_bucket_out_of_reach_ends_all_hosts_without_a_traceback(monkeypatch, capsys, library, stacks):
    ended = []
    monkeypatch.setattr(peers, "is_watching", lambda: True)
    monkeypatch.setattr(peers, "end_process", lambda *given: ended.append(given) or sys.exit(peers.EXIT_CODE))
    failure = type("NoRoute", (Exception,), {"__module__": library})

    @ending_together
    def run():
        raise failure("no route to\n gs://bucket/store")

    with pytest.raises(SystemExit):
        run()
    ((reason, whether),) = ended
    assert whether == stacks and ("Traceback" in capsys.readouterr().err) == stacks
    if not stacks:
        assert reason.startswith("Google Cloud Storage: no route to gs://bucket/store; check the name of the bucket")


def test_a_changed_source_file_is_known_by_its_name(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "pairs.py").write_text("one")
    before = sources(tmp_path)
    (tmp_path / "data" / "pairs.py").write_text("two")
    (tmp_path / "notes.txt").write_text("not code")
    with pytest.raises(Ended, match=r"code.data/pairs.py is [0-9a-f]{64} on host 0 and [0-9a-f]{64} on host 1"):
        refuse_differences([{"code": before}, {"code": sources(tmp_path)}])
    assert "devices/hosts.py" in sources() and "data/pairs.py" in sources()


HOST = """
import json
from bert_jax.devices import hosts
from bert_jax.errors import UserError

@hosts.ending_together
def failing_on(which, meet):
    if host == which:
        raise FileNotFoundError(f"nothing there on {host}")
    meet()

def said(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return [type(error).__name__, str(error)]

print(json.dumps({
    "from_first": hosts.from_first({"é": [host, None]}),
    "alike": said(hosts.check_alike, lambda: {"seed": 3, "path": host}, ("path",)),
    "different": said(hosts.check_alike, lambda: {"seed": host}),
    "any_failure": hosts.any_failure("torn" if host == 1 else None),
    "no_failure": hosts.any_failure(None),
    "second_fails": said(failing_on, 1, lambda: hosts.check_alike(dict)),
    "first_fails": said(failing_on, 0, lambda: hosts.from_first(None)),
    "other_ways": said(hosts.from_first, 1) if host else said(hosts.check_alike, dict),
    "after_all": hosts.from_first(host + 5)}))
"""


@pytest.fixture(scope="module")
def two_hosts() -> list[dict]:
    return [json.loads(printed) for printed in run_on_two_hosts(HOST)]


@pytest.mark.parametrize(
    "what, said",
    [
        ("from_first", {"é": [0, None]}),
        ("alike", None),
        ("no_failure", None),
        ("after_all", 5),
        (
            "different",
            [
                "Ended",
                "the hosts do not run the same thing: seed is 0 on host 0 and 1 on host 1. Start the same command "
                "on every host, with the same data, code and library versions",
            ],
        ),
        (
            "other_ways",
            [
                "Ended",
                "the hosts do not run the same thing: host 0 is in check_alike, host 1 in from_first. Start the "
                "same command on every host, with the same kinds of files",
            ],
        ),
    ],
)
def test_all_hosts_get_the_same_answer(two_hosts, what, said):
    assert [host[what] for host in two_hosts] == [said, said]


def test_a_failure_of_one_host_ends_the_others_with_its_words(two_hosts):
    assert [host["any_failure"] for host in two_hosts] == ["host 1: torn", "torn"]
    own = [["FileNotFoundError", f"nothing there on {host}"] for host in (0, 1)]
    others = [["Ended", f"host {host} has stopped: nothing there on {host}"] for host in (0, 1)]
    assert [host["second_fails"] for host in two_hosts] == [others[1], own[1]]
    assert [host["first_fails"] for host in two_hosts] == [own[0], others[0]]
