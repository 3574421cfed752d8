"""A vocabulary of letters, for the tests that prepare a corpus."""

import pytest
from letter_corpus import VOCABULARY


@pytest.fixture
def vocab(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return str(tmp_path / "vocab.txt")
