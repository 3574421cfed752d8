"""Names of machines."""

import pytest

from bert_jax.devices.hardware import peak_flops
from bert_jax.errors import UserError
from bert_jax.tools.planning import compiler
from bert_jax.tools.planning.topology import GPUS, MEMORY_SHARES, TPUS, find_topology


@pytest.mark.parametrize(
    "name, platform, slices, chips, hosts",
    [
        ("v5e:2x2", "tpu", 1, 4, 1),
        ("v5e:16x16", "tpu", 1, 256, 64),
        ("2xv5e:4x4", "tpu", 2, 32, 8),
        ("v5p:4x4x4", "tpu", 1, 64, 16),
        ("v4:2x2x1", "tpu", 1, 4, 1),
        ("v6e:1x1", "tpu", 1, 1, 1),
        ("cpu:8", "cpu", 1, 8, 1),
        ("gpu:h100:16", "gpu", 1, 16, 2),
    ],
)
def test_the_name_of_a_topology_gives_platform_slices_chips_and_hosts(name, platform, slices, chips, hosts):
    found = find_topology(name)
    assert (found.platform, found.slices, found.chips, found.hosts) == (platform, slices, chips, hosts)


@pytest.mark.parametrize(
    "name",
    [
        *("", "v5e", "v5e:3x3", "v5e:4x4x4", "v5p:4x4", "v7:2x2", "0xv5e:2x2", "2*v5e:2x2", "cpu:0", "cpu:99999"),
        *("gpu:8", "gpu:b300:8", "tpu:v5e:2x2", "v5e:2x2\n", "2x2xv5e:2x2"),
    ],
)
def test_unknown_names_list_the_known_ones(name):
    with pytest.raises(
        UserError, match="known: v5e and v6e with 1x1.*16x16 chips; v4 and v5p with 2x2x1.*; cpu:N; gpu:K"
    ):
        find_topology(name)


def test_a_near_name_is_suggested():
    with pytest.raises(UserError, match="unknown topology 'v5e:16x8'; perhaps you meant v5e:(8x16|16x16);"):
        find_topology("v5e:16x8")
    with pytest.raises(UserError, match="perhaps you meant v5e:4x4;"):
        find_topology("2*v5e:4x4")


def test_the_clock_is_the_peak_over_the_matrix_units():
    """Units per chip and their side: cloud.google.com/tpu/docs; the peak is that of devices/hardware.py."""
    for name, units, side in (("v4", 8, 128), ("v5e", 4, 128), ("v5p", 8, 128), ("v6e", 4, 256)):
        chip = TPUS[name]
        assert chip.clock is not None
        assert peak_flops(chip.kind) == pytest.approx(chip.clock * units * 2 * side**2, rel=0.01)


def test_every_chip_has_a_peak_and_the_compiler_knows_every_card():
    assert all(peak_flops(chip.kind) for chip in (*TPUS.values(), *GPUS.values()))
    assert compiler.CARDS.keys() == GPUS.keys()


@pytest.mark.skipif(compiler.plugin() is not None, reason="the compiler for GPUs is installed")
def test_a_plugin_that_jax_cannot_use_is_explained():
    with pytest.raises(UserError, match="cannot use the plugin .* install the same version of jax-cuda13-plugin"):
        compiler.described_cards(GPUS["h100"], 1)


def test_a_program_can_use_what_jax_takes_of_a_card(monkeypatch):
    """Three quarters, unless the environment says otherwise."""
    for name in MEMORY_SHARES:
        monkeypatch.delenv(name, raising=False)
    assert find_topology("gpu:h100:1").chip.memory_bytes == 60 * 10**9
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    assert find_topology("gpu:h100:1").chip.memory_bytes == 72 * 10**9
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "90%")
    with pytest.raises(UserError, match="XLA_CLIENT_MEM_FRACTION=90% must be a share of the memory, above 0 and at"):
        find_topology("gpu:h100:1")
