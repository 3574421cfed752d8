"""What every run does first, on each of its hosts."""

from bert_jax.config import Config
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.json_form import to_dict
from bert_jax.devices import hardware, peers
from bert_jax.devices.compilation_cache import use_compilation_cache
from bert_jax.devices.hosts import check_alike


def join_hosts(config: Config | FinetuneConfig, may_differ: tuple[str, ...]) -> None:
    """Find the other hosts, notice from now on if one of them dies, and keep compiled programs for later starts.

    Args:
      config: options of the run.
      may_differ: those whose values may differ between hosts (`config.changes.Changes.where`).

    Raises:
      UserError: the hosts were given different options.
    """
    hardware.initialize_distributed(config.faults.peer_timeout_seconds)
    peers.watch(config.faults.peer_timeout_seconds)
    check_alike(lambda: to_dict(config), may_differ)
    use_compilation_cache()
