"""Models compared array by array."""

from pretrained_model import contents

from bert_jax.formats.stored import check_fit


def assert_same(one, other) -> None:
    check_fit(other)
    assert contents(one) == contents(other)
    assert (one.model, one.head, one.parts) == (other.model, other.head, other.parts)
    assert one.tokenizer.fingerprint == other.tokenizer.fingerprint
