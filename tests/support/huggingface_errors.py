"""How far our float32 numbers are from those of `transformers` in float64 (tests/oracles/make_huggingface_oracle.py).

python tests/support/huggingface_errors.py     # prints the table of docs/checkpoints.md
"""

import dataclasses

import jax
import numpy as np
import random_bert
from oracles import make_huggingface_oracle

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.models.bert import BertForPreTraining
from bert_jax.objectives import masked_words


def ours(name: str, activation: str) -> dict[str, np.ndarray]:
    """Outputs at real positions, loss and the gradient of every parameter, in float32."""
    sizes = random_bert.sizes(name)
    model = BertForPreTraining(ModelConfig(**sizes, activation=activation), ComputeConfig(dtype="float32"))
    batch, drawn = random_bert.draw_batch(sizes), random_bert.draw_parameters(sizes)
    paths = jax.tree.map_with_path(
        lambda path, _: "/".join(entry.key for entry in path), jax.eval_shape(model.init, jax.random.key(0))
    )

    def outputs(params):
        output = model.apply(params, batch)
        encoded = model.encode(
            params, *(batch[key] for key in ("input_ids", "token_type_ids", "attention_mask")), collect=True
        )
        words = masked_words.masked_word_sums(output.mlm_logits, batch["masked_ids"], batch["masked_weights"])
        pairs = masked_words.sentence_pair_sums(output.next_sentence_logits, batch["next_sentence_labels"])
        loss = words.loss / words.weight + pairs.loss / pairs.weight
        return loss, output._asdict() | encoded._asdict()

    # The values are the same without LLVM's optimizations, the program is ready in half the time.
    run = jax.jit(jax.value_and_grad(outputs, has_aux=True), compiler_options={"xla_backend_optimization_level": 0})
    (loss, out), gradient = jax.device_get(run(jax.tree.map(drawn.get, paths)))
    real = batch["attention_mask"].astype(bool)
    result = {"loss": loss} | {key: out[key] for key in ("next_sentence_logits", "pooled", "mlm_logits")}
    result |= {f"hidden_states/{index}": state[real] for index, state in enumerate(out["hidden_states"])}
    result |= {f"attentions/{index}": maps for index, maps in enumerate(out["attentions"])}
    return result | {f"gradients/{p}": value for p, value in zip(jax.tree.leaves(paths), jax.tree.leaves(gradient))}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One quantity compared with float64: largest errors at the samples, PyTorch's also over the whole array."""

    error: float
    their_error: float
    their_largest_error: float
    norm_error: float
    """Of ours, relative."""
    size: float
    """Largest sample."""


def compare(name: str, activation: str, path=make_huggingface_oracle.PATH) -> dict[str, Comparison]:
    """What our float32 and PyTorch's are worth, by quantity."""
    recorded, case, actual = np.load(path), f"{name}/{activation}", ours(name, activation)
    names = recorded[f"{case}/names"].tolist()
    assert set(names) == set(actual), "the oracle was made from other parameters"
    found = {}
    for quantity, truth, theirs in zip(names, recorded[f"{case}/values"], recorded[f"{case}/errors"]):
        difference = np.abs(random_bert.sample(actual[quantity], quantity) - truth)
        found[quantity] = Comparison(difference[1:].max(), *theirs, difference[0] / truth[0], np.abs(truth[1:]).max())
    return found


def main() -> None:
    for case in random_bert.CASES:
        groups = {}
        for quantity, found in compare(*case).items():
            group = groups.setdefault(
                "key bias" if quantity.endswith("key/bias") else quantity.split("/")[0], [0.0, 0.0]
            )
            group[:] = max(group[0], found.error), max(group[1], found.their_error)
        if case == random_bert.CASES[0]:
            print(f"| model | {' | '.join(groups)} |\n|---|{'---|' * len(groups)}")
        cells = (f"{own:.1e} ({theirs:.1e})" for own, theirs in groups.values())
        print(f"| {case[0]}, {case[1]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
