"""Writes an oracle of tests/support/recorded_models.py: small models of transformers on drawn parameters.

    python -m venv oracle && oracle/bin/pip install torch==2.13.0 transformers==5.24.0
    oracle/bin/python tests/oracles/make_model_types_oracle.py ORACLE [OTHER.npz]

ORACLE is deberta, modernbert, modernbert_decoder, nomic_bert, eurobert, mpnet, xlnet, roberta or smaller_encoders.

Of each case: the names and shapes of the arrays as transformers saves them, outputs in float32, and norm and samples of
every gradient of a sum over them, or the whole gradients of a class of each smaller encoder and of a RoBERTa's masked
words. Of WITH_CONFIG also config.json. Of XLNets with a memory also the states of every segment, the attention of the
last one, what is remembered after it, and gradients of the last one.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.numpy

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import recorded_models as drawn
import torch
import transformers

WHOLE = ("albert/PreTraining", "distilbert/SequenceClassification", "electra/PreTraining")
"""Whose gradients are stored whole, at both sizes."""
WITH_CONFIG = ("deberta", "modernbert", "modernbert_decoder", "nomic_bert", "eurobert", "mpnet", "xlnet")
Arrays = dict[str, torch.Tensor]


def build(case: drawn.Case):
    """The torch model with the drawn parameters, and the shapes of the arrays that a file has."""
    kind = getattr(transformers, case.of_class)
    attention = {} if case.oracle == "xlnet" else {"attn_implementation": "eager"}
    given = {key: value for key, value in case.config.items() if key != "model_type"}
    model = kind(kind.config_class(**given, **attention)).eval()
    shapes = drawn.saved_shapes(model)
    if case.oracle == "nomic_bert":  # whose files have other names than its modules
        with tempfile.TemporaryDirectory() as directory:
            model.save_pretrained(directory)
            safetensors.numpy.save_file(case.draw(shapes), f"{directory}/model.safetensors", {"format": "pt"})
            return kind.from_pretrained(directory, **attention).eval(), shapes
    state = {key: torch.from_numpy(values) for key, values in case.draw(shapes).items()}
    _, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    model.tie_weights()
    return model, shapes


def outputs(case: drawn.Case, output) -> Arrays:
    """Logits by name, of a bare encoder its states, and what it pools."""
    if "sop_logits" in output:
        found = {"logits": output.prediction_logits, "pair_logits": output.sop_logits}
    else:
        found = {"logits": drawn.logits_of(output)}
    return found | ({"pooled": output.pooler_output} if "pooler_output" in output else {})


def layers(case: drawn.Case, output) -> Arrays:
    """States and attentions of all layers: of targets apart, of some oracles at the positions of real tokens only."""
    states, real = dict(enumerate(output.hidden_states)), torch.tensor(case.mask)
    if case.oracle in ("roberta", "smaller_encoders"):
        found = {f"hidden_states/{index}": state for index, state in states.items()}
        return found | {f"attentions/{index}": maps for index, maps in enumerate(output.attentions)}
    if not case.targets:
        found = {f"states/{index}": state[real] for index, state in states.items()}
        return found | {f"attentions/{index}": maps for index, maps in enumerate(output.attentions)}
    found = {f"targets/{index // 2}": state for index, state in states.items() if index % 2}
    found |= {f"states/{index // 2}": state[real] for index, state in states.items() if index % 2 == 0}
    places = torch.tensor(case.targets)[:, None, :, None]
    for layer, (tokens, targets) in enumerate(output.attentions):
        found[f"attentions/{layer}"] = tokens
        found[f"target_attentions/{layer}"] = torch.take_along_dim(targets, places, 2)
    return found


def gradients(case: drawn.Case, model, shapes, whole: bool) -> Arrays | dict[str, np.ndarray]:
    if not whole:
        return {"gradients": drawn.gradients_of(model, shapes)}
    parameters = dict(model.named_parameters())
    return {f"gradients/{name}": parameters[name].grad for name in shapes}


def record(case: drawn.Case) -> dict[str, np.ndarray]:
    model, shapes = build(case)
    given = tensors(case, case.asked(case.given()))
    memory = {"use_mems": False} if case.oracle == "xlnet" else {}
    output = model(**given, **memory, output_hidden_states=True, output_attentions=True)
    found, task = outputs(case, output), case.name.split("/")[-1]
    size = f"{case.name.split()[0].split('/')[0]}/{task}"
    if case.oracle == "smaller_encoders":
        sum((each * torch.from_numpy(case.weights(each.shape))).sum() for each in found.values()).backward()
        arrays = found | (layers(case, output) if task in ("Model", "MaskedLM") else {})
        arrays |= gradients(case, model, shapes, size in WHOLE)
    elif task == "RobertaModel":
        arrays = {"pooled": found["pooled"]} | layers(case, output)
    elif task == "RobertaForMaskedLM":
        logits = found["logits"][torch.arange(4)[:, None], torch.tensor(drawn.PLACES.astype(np.int64))]
        words = torch.tensor(drawn.words(case).astype(np.int64))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())
        loss.backward()
        arrays = {"logits": logits, "loss": loss} | gradients(case, model, shapes, True)
    else:
        logits = found["logits"]
        read = logits[case.defined(tuple(logits.shape))]
        torch.sum(torch.sin(read)).backward()
        arrays = {"logits": logits} if case.oracle == "roberta" else {"logits": read} | layers(case, output)
        arrays |= gradients(case, model, shapes, False)
        arrays |= {"pooled": found["pooled"]} if "pooled" in found else {}
    if case.id in drawn.DECODED:
        states = decoded(case, model.deberta, output.hidden_states[-2], given["attention_mask"])
        arrays |= {"decoded": states[case.mask], "decoded_logits": word_logits(case, states, shapes)[case.mask]}
    if case.id in drawn.MEMORY:
        arrays |= record_memory(case, model) | {"memory/gradients": drawn.gradients_of(model, shapes)}
    arrays = {key: np.asarray(value.detach() if torch.is_tensor(value) else value) for key, value in arrays.items()}
    if case.oracle in WITH_CONFIG:
        model.config.architectures = [case.of_class]
        arrays["config"] = np.array(json.dumps(model.config.to_dict()))
    return arrays | {"shapes": np.array(json.dumps(shapes))}


def decoded(case: drawn.Case, model, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The two passes of the enhanced mask decoder, by the layer of transformers that takes queries of its own.

    As in EnhancedMaskDecoder of microsoft/DeBERTa, DeBERTa/apps/models/masked_language_model.py.
    """
    encoder, table = model.encoder, torch.from_numpy(drawn.absolute_positions(case.config))
    layer, queries = encoder.layer[-1], states + table[None, : states.shape[1]]
    more = {"relative_pos": encoder.get_rel_pos(states), "rel_embeddings": encoder.get_rel_embedding()}
    mask = encoder.get_attention_mask(mask)
    if case.of_class.startswith("DebertaV2"):
        for _ in range(2):
            queries = layer(states, mask, query_states=queries, **more)[0]
        return queries
    attention = layer.attention.self  # that of version 1 cannot compute with queries of its own: its map does it
    whole, heads = attention.in_proj, attention.num_attention_heads
    of_states = whole(states).unflatten(-1, (heads, 3, -1))[..., 1:, :]
    attention.in_proj = torch.nn.Identity()
    for _ in range(2):
        of_queries = whole(queries).unflatten(-1, (heads, 3, -1))[..., :1, :]
        together = torch.cat([of_queries, of_states], -2).flatten(-3)
        attention.in_proj.forward = lambda x, together=together: together
        queries = layer(queries, mask, **more)[0]
    attention.in_proj = whole
    return queries


def word_logits(case: drawn.Case, states: torch.Tensor, shapes: dict[str, list[int]]) -> torch.Tensor:
    """The head of masked words, BertLMPredictionHead there, on the drawn arrays."""
    state = {name: torch.from_numpy(values) for name, values in case.draw(shapes).items()}
    functional, hidden = torch.nn.functional, states.shape[-1]
    head = "lm_predictions.lm_head" if "lm_predictions.lm_head.bias" in state else "cls.predictions"
    inner = head if head.startswith("lm_") else f"{head}.transform"
    dense, norm = ([state[f"{inner}.{name}.{kind}"] for kind in ("weight", "bias")] for name in ("dense", "LayerNorm"))
    x = functional.gelu(functional.linear(states, *dense))
    x = functional.layer_norm(x, (hidden,), *norm, case.config.get("layer_norm_eps", 1e-7))
    return functional.linear(x, state["deberta.embeddings.word_embeddings.weight"], state[f"{head}.bias"])


def tensors(case: drawn.Case, values: dict[str, np.ndarray]) -> Arrays:
    """Inputs as the models of a type read them: an XLNet a mask of floats."""
    found = {
        key: torch.tensor(array.astype(np.int64) if array.dtype == np.int32 else array) for key, array in values.items()
    }
    return found | ({"attention_mask": found["attention_mask"].float()} if case.oracle == "xlnet" else {})


def record_memory(case: drawn.Case, model) -> Arrays:
    """Read the segments of a case one after the other, each with the memory of those before."""
    encoder, options, mems, arrays = model.transformer, drawn.MEMORY[case.id], None, {}
    encoder.mem_len, encoder.reuse_len = options["mem_len"], options["reuse_len"]
    model.zero_grad()
    for number, segment in enumerate([*drawn.segments(case)[:-1], case.given()]):
        given = tensors(case, segment)
        output = encoder(**given, mems=mems, use_mems=True, output_hidden_states=True, output_attentions=True)
        mems, states = output.mems, output.hidden_states
        if "perm_mask" in segment:
            states = [torch.cat([states[place], states[place + 1]], 1) for place in range(0, len(states), 2)]
        arrays |= {f"memory/{number}/states/{index}": state for index, state in enumerate(states)}
    torch.sum(torch.sin(states[-1][:, :1])).backward()
    maps = [each[0] if case.targets else each for each in output.attentions]
    arrays |= {f"memory/attentions/{index}": each for index, each in enumerate(maps)}
    return arrays | {f"memory/kept/{index}": state.transpose(0, 1) for index, state in enumerate(mems)}


if __name__ == "__main__":
    drawn.record_all(sys.argv[1], record, sys.argv[2:])
