"""The record of a benchmark: where it was measured, for people and for programs."""

import json

import pytest

from bert_jax.bench.bench_record import Report, recorded, show

GPU = "1 × NVIDIA H100 80GB HBM3 (gpu): peak 989 TFLOP/s bfloat16 per device, 79.6 GiB per device"
PEER = {"torch": "2.13.0", "transformers": "5.24.0", "cuda": True}


def report(device: str | None, peer: dict | None) -> Report:
    """Of three contestants, the first of which uses no device and the last that of another run."""
    facts = [{}, {"facts": {"path": "xla"} | ({"device": device} if device else {})}, {"facts": {"device": "another"}}]
    values = recorded("load", ["MODEL"], (0.25, 0.5), peer=peer)
    return Report(values | {"contestants": facts[: 3 if device else 2]}, "A title", ("contestant",), [("ours",)], ["."])


@pytest.mark.parametrize("device", [GPU, "4 × TPU v5 lite (tpu) on 2 hosts: peak 197 TFLOP/s bfloat16 per device"])
def test_an_accelerator_is_named_before_the_processor(device, tmp_path, capsys):
    show(found := report(device, None), str(tmp_path / "a.json"))
    values = json.loads((tmp_path / "a.json").read_text())
    where = (tmp_path / "a.md").read_text().splitlines()[2]
    assert values["device"] == device and values["benchmark"] == "load"
    assert where.startswith(f"{device}; {values['processor']}, {values['cores']} cores, ")
    assert capsys.readouterr().out.startswith(found.markdown())


@pytest.mark.parametrize("device", ["1 × cpu", "8 × cpu on 2 hosts", None])
def test_the_processor_is_named_once(device, tmp_path):
    show(report(device, None), str(tmp_path / "a.json"))
    values = json.loads((tmp_path / "a.json").read_text())
    where = (tmp_path / "a.md").read_text().splitlines()[2]
    assert values["device"] == device
    assert where.startswith(f"{values['processor']}, ") and "× cpu" not in where


@pytest.mark.parametrize("peer, ends", [(PEER, ", torch 2.13.0, transformers 5.24.0."), (None, ".")])
def test_versions_of_the_peer_follow_ours(peer, ends):
    found = report(GPU, peer)
    (where,) = (line for line in found.markdown().splitlines() if "load average" in line)
    assert where.endswith(f", jax {found.values['versions']['jax']}{ends}")
