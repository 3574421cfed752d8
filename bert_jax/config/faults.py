"""Options of what goes wrong in a run; only the standard library is imported here."""

import dataclasses
import math

from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFaultsConfig:
    """Handling of hosts that hang or die, and of devices that compute wrongly."""

    step_timeout_seconds: float | None = None
    """Seconds that a step or a batch of an evaluation may take before the run ends on every host, with a stack trace of
    each. None: five minutes more than the slowest so far. 0: no limit."""
    peer_timeout_seconds: int = 60
    """Seconds without a heartbeat from another host after which it counts as dead, and the run ends."""
    check_replicas_every: int = 0
    """Number of steps between two checks that all copies of the parameters and of the optimizer state are the same to
    the bit. The run stops if they are not, and names the device. 0: no check."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultsConfig(HostFaultsConfig):
    """Handling of hosts that hang or die, and of numbers that go wrong."""

    max_skipped_steps: int = 10
    """Number of consecutive updates that are skipped because their loss or gradient is not finite. After them the run
    rolls back to its last good checkpoint and continues after the batches that it had reached."""
    spike_threshold: float = 0.0
    """Number of robust standard deviations (1.4826 times the median absolute deviation) above the median of the last
    128 losses at which a loss makes the run roll back in the same way; for PaLM this was done by hand. 0: no loss
    does."""
    rollbacks: int = 3
    """Maximum number of rollbacks of a run. After them it stops and leaves a report."""


def check_host_faults(faults: HostFaultsConfig) -> None:
    """Raise a UserError if a value is out of range."""
    if faults.step_timeout_seconds is not None and not 0 <= faults.step_timeout_seconds < math.inf:
        raise UserError(
            f"faults.step_timeout_seconds={faults.step_timeout_seconds} must be a positive number, or 0 for no limit"
        )
    if faults.peer_timeout_seconds < 10:
        raise UserError(
            f"faults.peer_timeout_seconds={faults.peer_timeout_seconds} must be at least 10: a busy host is not dead"
        )
    _need_count(faults, "check_replicas_every")


def check_faults(faults: FaultsConfig) -> None:
    """Raise a UserError if a value is out of range."""
    check_host_faults(faults)
    if faults.max_skipped_steps < 1:
        raise UserError(f"faults.max_skipped_steps={faults.max_skipped_steps} must be positive")
    if not 0 <= faults.spike_threshold < math.inf:
        raise UserError(f"faults.spike_threshold={faults.spike_threshold} must be a positive number, or 0 for none")
    _need_count(faults, "rollbacks")


def _need_count(faults: HostFaultsConfig, name: str) -> None:
    if getattr(faults, name) < 0:
        raise UserError(f"faults.{name}={getattr(faults, name)} must not be negative")
