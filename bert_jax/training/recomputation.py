"""What the backward pass computes again where `compute.remat=auto` leaves it to the memory of a device."""

import dataclasses

from bert_jax.config import ComputeConfig
from bert_jax.models.layer_loop import scans
from bert_jax.models.memory_costs import step_bytes
from bert_jax.models.parameters import FLOAT32
from bert_jax.models.protocol import HasGenerator, Model

USABLE = 0.9
"""Share of the memory for which `step_bytes` may plan; the rest is for the program and the gaps between arrays."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """What a device has to hold during a step, beside the model."""

    memory_bytes: int | None
    """Memory of the device; None if it is unknown, as of a processor."""
    moments: int
    """Values that the optimizer keeps per parameter."""
    sequence_length: int
    predictions: int
    """Positions of a sequence at which words are predicted."""
    rows: int
    """Sequences that are computed at a time."""
    split: int
    """Number of devices over which parameters, moments and gradients are split."""
    probabilities: bool = True
    """Whether the backward pass of attention reads its probabilities, rather than computing them again in a kernel."""
    local_keys: int | None = None
    """Scores that each position of a local layer has; None: see `activation_bytes`."""


def remat_policy(model: Model, compute: ComputeConfig, load: Load) -> str:
    """Return compute.remat or, for auto, the fastest policy whose closed form fits; none where memory is unknown."""
    if compute.remat != "auto":
        return compute.remat
    if load.memory_bytes is None:
        return "none"
    # A loop over layers, unlike a scan, lets the compiler decide what to keep; compiled for v5e, it is faster than sel.
    policies = ("sel", "full") if scans(model.config, compute) else ("none", "sel", "full")
    memory = USABLE * load.memory_bytes
    return next((each for each in policies if needed_bytes(model, compute, load, each) < memory), policies[-1])


def needed_bytes(model: Model, compute: ComputeConfig, load: Load, remat: str) -> int:
    """Return the memory that a step takes on a device by closed form, with one of the policies but for auto."""
    sizes = dataclasses.asdict(load)
    del sizes["memory_bytes"]
    return step_bytes(
        model.config,
        model.parameters,
        remat=remat,
        value_bytes=FLOAT32 if compute.dtype == "float32" else FLOAT32 // 2,
        unrolled=not scans(model.config, compute),
        generator=model.generator.config if isinstance(model, HasGenerator) else None,
        **sizes,
    )
