"""The compiler for NVIDIA GPUs, which is in JAX's plugin and needs no card if it is told what the card is like."""

import dataclasses
import importlib.metadata
import importlib.util
from typing import Any

from bert_jax.config import ComputeConfig
from bert_jax.errors import UserError
from bert_jax.planning.topology import Chip

PLUGINS = ("cuda13", "cuda12")
"""Either of them has the compiler; the first one that is installed is used."""
FLAGS = {"xla_gpu_enable_triton_gemm": False}
"""On a card, XLA tries its own kernels for products and cuBLAS, and takes the faster one. Here it cannot try, and some
of its kernels need settings that are found in this way; so all products are cuBLAS's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Multiprocessors:
    """What the compiler asks of a card beside its memory."""

    count: int
    compute_capability: int
    """Major version; the minor version of those here is 0."""
    lanes: int
    """Operations of float32 in one cycle of a multiprocessor."""
    clock_ghz: float
    shared_memory: int
    """Bytes on each multiprocessor; one block of threads gets all but 1,024 of them."""
    cache: int
    """Bytes of the second level, for all."""


_HOPPER = Multiprocessors(
    count=132, compute_capability=9, lanes=128, clock_ghz=1.98, shared_memory=228 * 2**10, cache=50 * 2**20
)
# NVIDIA's papers on the architectures A100 and H100, in the SXM form.
CARDS = {
    "a100": Multiprocessors(
        count=108, compute_capability=8, lanes=64, clock_ghz=1.41, shared_memory=164 * 2**10, cache=40 * 2**20
    ),
    "h100": _HOPPER,
    "h200": _HOPPER,
}


def plugin() -> str | None:
    """Return the name of the plugin that has the compiler, without importing it, or None if there is none."""
    for name in PLUGINS:
        try:
            if importlib.util.find_spec(f"jax_plugins.xla_{name}"):
                return name
        except ModuleNotFoundError:  # jax_plugins
            return None
    return None


def version() -> str:
    """Return the name and version of the compiler that is installed."""
    package = f"jax-{plugin()}-plugin"
    return f"{package} {importlib.metadata.version(package)}"


def check(compute: ComputeConfig) -> None:
    """Raise a UserError if a step with these options cannot be compiled without a card."""
    if compute.attention == "cudnn":
        raise UserError(
            "compute.attention=cudnn cannot be planned with the compiler for GPUs, because JAX asks the card for its "
            "cuDNN; plan with compute.attention=triton, or with xla, which takes more memory"
        )


def described_cards(chip: Chip, count: int) -> Any:
    """Return descriptions of `count` cards in one host, for which programs can be compiled and not run.

    Raises:
      UserError: the plugin does not fit JAX.
    """
    from jax import __version__
    from jax.experimental import topologies

    options: dict[str, Any] = {"target_config": target_config(chip), "topology": f"1x1x{count}"}
    try:
        return topologies.get_topology_desc(platform="cuda", **options).devices
    except NotImplementedError:  # JAX has told why on stderr, and goes on without the plugin
        raise UserError(
            f"jax {__version__} cannot use the plugin with the compiler for GPUs; install the same version of "
            "jax-cuda13-plugin and jax-cuda13-pjrt (docs/planning.md)"
        ) from None


def target_config(chip: Chip) -> str:
    """Return what XLA is told of a card: a GpuTargetConfigProto as text."""
    card = CARDS[chip.name]
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {card.shared_memory}
  shared_memory_per_block_optin: {card.shared_memory - 1024}
  core_count: {card.count} fpus_per_core: {card.lanes} clock_rate_ghz: {card.clock_ghz}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {int(chip.memory_bandwidth)} l2_cache_size: {card.cache} device_memory_size: {chip.memory_bytes}
  cuda_compute_capability {{ major: {card.compute_capability} minor: 0 }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: {13 if plugin() == "cuda13" else 12} minor: 0 }}
device_description_str: "{chip.kind}"
"""
