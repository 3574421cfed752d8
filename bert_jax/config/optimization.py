"""Options of the optimizer, and of the learning rate over the steps."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer, which turns gradients into updates."""

    name: Literal["adamw_bert", "adamw", "lamb", "stable_adamw", "muon"] = "adamw"
    """The update rule. adamw: Adam with decoupled weight decay and bias correction. adamw_bert: the optimizer of 2018
    exactly, without bias correction. lamb: for very large batches. stable_adamw: adamw with smaller steps for arrays
    whose gradients are larger than their second moments foresee, in place of clipping (set clip_norm=0). muon:
    orthogonalized momentum for the matrices of the layers, adamw for everything else."""
    beta1: float = 0.9
    """Decay rate of the first moment."""
    beta2: float = 0.999
    """Decay rate of the second moment."""
    momentum: float = 0.95
    """Decay rate of the momentum of matrices; used with name=muon only."""
    epsilon: float = 1e-6
    """Constant added to the square root of the second moment."""
    weight_decay: float = 0.01
    """Rate of the decoupled weight decay: a step takes learning rate × weight_decay of each weight. Biases and
    LayerNorm parameters do not decay."""
    clip_norm: float = 1.0
    """Maximum global norm of the gradients. 0 turns clipping off."""
    ema_decay: float = 0.0
    """Decay rate of a moving average of the weights, for example 0.999, which is evaluated as ema_…, saved in the
    checkpoints and written by `bert-jax convert --weights=ema`. 0: there is no average. It is used in pre-training
    only."""

    @property
    def moments(self) -> int:
        """Number of values kept for each parameter: m and v of Adam (with muon, at most), and the moving average."""
        return 2 + (self.ema_decay > 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Shape of the learning rate after the warm-up."""

    name: Literal["linear", "linear_after_warmup", "polynomial", "cosine", "constant"] = "linear"
    """Shape of the decay. linear is that of 2018: the line runs from step 0 to the last step, and the warm-up overrides
    its beginning. linear_after_warmup falls from the full peak at the end of the warm-up, as in torch recipes."""
    power: float = 1.0
    """Exponent of the polynomial decay; used with name=polynomial only."""
    final_fraction: float = 0.0
    """Learning rate at the last step, as a fraction of the peak."""
    cooldown_steps: int = 0
    """Number of steps at the end in which a constant rate falls to final_fraction; used with name=constant only."""
    cooldown: Literal["linear", "one_minus_sqrt"] = "linear"
    """Shape of that fall. one_minus_sqrt: 1 − √(share of the cooldown that is over), steep at first (Hägele et al.
    2024), as in ModernBERT."""
