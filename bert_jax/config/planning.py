"""Options of `bert-jax plan`, as a frozen dataclass; standard library only."""

import dataclasses

from bert_jax.config.field_values import field_values
from bert_jax.config.options import Config
from bert_jax.errors import UserError

OUTPUTS = (".json", ".html")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig(Config):
    """Options of `bert-jax plan`: those of a run, and the machine that it is planned for."""

    topology: str = ""
    """Machine to plan for. v5e:16x16: a slice of 16 × 16 TPU v5e chips; 2xv5e:4x4: two slices of 4 × 4; also v4, v5p
    and v6e. cpu:8: eight devices of a processor. gpu:h100:8: eight cards. An unknown name lists
    the known ones."""
    search: bool = False
    """Also find, for each phase, the weakest remat that makes it fit, the largest batch that fits, and the fastest of a
    few meshes. This compiles about ten programs per phase."""
    price_per_chip_hour: float = 0.0
    """Price of a chip for an hour, in any currency. By default no cost is computed."""
    output: str = ""
    """File to write the plan to: .json for programs, .html for people. By default it is only printed."""

    @classmethod
    def of(cls, config: Config) -> "PlanConfig":
        """Return the options of a plan without a machine."""
        return cls(**field_values(Config, config))

    @property
    def run(self) -> Config:
        """The options of the run alone."""
        return Config(**field_values(Config, self))


def check_plan(options: PlanConfig) -> None:
    """Raise a UserError if the price is negative or the output has an unknown format."""
    if not 0 <= options.price_per_chip_hour < float("inf"):
        raise UserError(f"price_per_chip_hour={options.price_per_chip_hour} must be 0 or a positive number")
    if options.output and not options.output.endswith(OUTPUTS):
        raise UserError(f"output={options.output} must end in {' or '.join(OUTPUTS)}")
