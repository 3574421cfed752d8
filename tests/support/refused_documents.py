"""Sources whose documents cannot be read."""

import pytest

from bert_jax.corpus.readers import read_documents
from bert_jax.errors import UserError


def refused(path, *words: str, **options) -> None:
    """Read the documents of `path`, which ends with one line that has these words."""
    with pytest.raises(UserError) as error:
        list(read_documents(str(path), **options))
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in (path.name, *words))
