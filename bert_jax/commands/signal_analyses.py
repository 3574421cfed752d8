"""`bert-jax analyze init`: a model before its first step, computed, printed and drawn."""

import dataclasses

from etils import epath
from rich.console import Console
from rich.table import Table

from bert_jax.analysis.pictures import write_pictures
from bert_jax.analysis.saved_results import model_fingerprint, output_directory, save_result, saved_result
from bert_jax.analysis.signal.initialisation import Initialisation, init
from bert_jax.analysis.signal.signal_pictures import draw_initialisation, draw_positions
from bert_jax.config import ModelConfig
from bert_jax.config.analyses.signal_options import InitConfig
from bert_jax.config.json_form import to_dict
from bert_jax.config.shipped import shipped_configs
from bert_jax.console.command_line import load_config
from bert_jax.devices.hardware import all_devices
from bert_jax.pretrained.loading import load
from bert_jax.pretrained.model import PretrainedModel


def run_init(path: str, options: InitConfig) -> None:
    """Print and draw how a model begins, or what was computed before."""
    all_devices()  # as `load` does, but for a configuration alone
    model = _model(path)
    directory = output_directory(options.output)
    config = to_dict(model) if isinstance(model, ModelConfig) else model_fingerprint(model)
    chosen = {name: value for name, value in dataclasses.asdict(options).items() if name != "output"}
    key = {"analysis": "init", "model": config, "options": chosen}
    result = saved_result(directory / "result.json", key, Initialisation)
    if result is None:
        sizes = {"heads": options.heads, "lengths": options.lengths, "draws": options.draws, "length": options.length}
        result = init(model, **sizes, seed=options.seed, name=path)
        save_result(directory / "result.json", key, result)
    else:
        print(f"{options.output}/result.json has this result already; it is not computed again")
    pictures = write_pictures(draw_initialisation(result), options.output, "init")
    if result.positions is not None:
        pictures += write_pictures(draw_positions(result.positions, path), options.output, "positions")
    for table in _tables(result):
        Console().print(table)
    print(f"{options.output}: {', '.join(['result.json', *pictures])}")


def _model(path: str) -> PretrainedModel | ModelConfig:
    """Return the model in a directory, or the sizes in a configuration: the name of a shipped one, or a file."""
    named = path in shipped_configs() or path.endswith((".py", ".json"))
    return load_config(path).model if named and not epath.Path(path).is_dir() else load(path)


def _tables(result: Initialisation) -> list[Table]:
    norm, growth, costs = result.norm, result.growth, result.costs
    heads = Table("heads", "norm", "law", "squared, measured / law", title="norm of attention")
    for count, *values, error in zip(
        norm.heads, norm.measured, norm.predicted, norm.ratio, norm.standard_error, strict=True
    ):
        heads.add_row(str(count), *(f"{value:.4f}" for value in values[:2]), f"{values[2]:.3f} ± {error:.3f}")
    layers = Table("layer", "state, post", "pre", "pre, theory", "gradient, post", "pre", title="growth by depth")
    for layer, (*states, theory) in enumerate(zip(*growth.state, growth.predicted_state, strict=True)):
        gradients = growth.gradient[:, layer - 1] if layer else ()
        row = [f"{value:.3f}" for value in (*states, theory)] + [f"{value:.4f}" for value in gradients]
        layers.add_row(str(layer) if layer else "emb", *row)
    last = Table("depth", "post", "pre", "post / pre", "theory", title="gradient of the last output kernel")
    for depth, post, pre, ratio in zip(growth.depths, *growth.last_gradient, growth.predicted_ratio, strict=True):
        last.add_row(str(depth), f"{post:.4f}", f"{pre:.4f}", f"{post / pre:.3f}", f"{ratio:.3f}")
    work = Table("tokens", "GFLOP, XLA", "closed form", "MB, XLA", "closed form", title="a step, per sequence")
    for length, flops, closed, memory, kept in zip(
        costs.lengths, costs.flops, costs.closed_flops, costs.bytes, costs.closed_bytes, strict=True
    ):
        work.add_row(
            str(length), f"{flops / 1e9:.3f}", f"{closed / 1e9:.3f}", f"{memory / 1e6:.2f}", f"{kept / 1e6:.2f}"
        )
    return [heads, layers, last, work]
