"""Prints how many parameters v2-xlarge and v2-xxlarge have in transformers, of the bare encoder and with its head.

    oracle/bin/python tests/oracles/count_deberta.py      # in the environment of make_model_types_oracle.py

The sizes are those of their published configurations; the arrays are built on the meta device.
"""

import torch
import transformers

SIZES = dict(
    vocab_size=128_100,
    hidden_size=1_536,
    num_attention_heads=24,
    intermediate_size=6_144,
    relative_attention=True,
    position_buckets=256,
    norm_rel_ebd="layer_norm",
    share_att_key=True,
    pos_att_type=["p2c", "c2p"],
    position_biased_input=False,
    type_vocab_size=0,
    conv_kernel_size=3,
    conv_act="gelu",
)

if __name__ == "__main__":
    for layers in (24, 48):
        config = transformers.DebertaV2Config(**SIZES, num_hidden_layers=layers)
        for kind in (transformers.DebertaV2Model, transformers.DebertaV2ForMaskedLM):
            with torch.device("meta"):
                arrays = {id(array): array for array in kind(config).parameters()}  # the word table is in it twice
            print(f"{layers} layers, {kind.__name__}: {sum(array.numel() for array in arrays.values()):,}")
