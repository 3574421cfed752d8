"""Runs before any test imports jax: eight virtual CPU devices stand in for a pod slice."""

import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Tests count compilations and read compiled programs; those of the cache itself switch it on in processes of their own.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import pytest

SHARED_DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory) -> None:
    """No test reads or writes the user's own cache directory; the processes that tests start inherit the variable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Real text and vocabularies that lie beside the checkout on development machines; never part of the repository."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the development data directory ../shared/data is not on this machine")
    return SHARED_DATA


@pytest.fixture(scope="session")
def small_store(tmp_path_factory) -> pathlib.Path:
    """A token store made by the real commands from 300 small documents; vocab.txt lies beside it."""
    import small_corpus
    from bert_jax.config import PrepareConfig, TrainVocabConfig
    from bert_jax.data.store.prepare import run_prepare
    from bert_jax.tokenization.learning import run_train_vocab

    place = tmp_path_factory.mktemp("small")
    corpus = small_corpus.write(place / "corpus.txt", 300)
    run_train_vocab(TrainVocabConfig(input=str(corpus), output=str(place / "vocab.txt"), size=200))
    run_prepare(
        PrepareConfig(
            input=str(corpus), vocab=str(place / "vocab.txt"), output=str(place / "store"), sentences="lines", workers=1
        )
    )
    return place / "store"
