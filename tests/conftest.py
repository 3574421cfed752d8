"""Runs before any test imports jax: eight virtual CPU devices replace a pod slice; compiled programs are shared."""

import gc
import importlib.util
import os
import pathlib
import pickle
import shutil
import signal
import sys

from processes import UNOPTIMIZED, end_forks

ROOT = pathlib.Path(__file__).resolve().parents[1]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
FLAGS = ["--xla_force_host_platform_device_count=8", *([] if "BERT_JAX_OPTIMIZED" in os.environ else [UNOPTIMIZED])]
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS])
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # imports TensorFlow without Keras, as commands do
# Compiled programs are kept as for users, below build/: one cache for all workers and the processes that tests start.
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # a worker gets what is set below
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
os.environ["HF_HUB_OFFLINE"] = "1"  # a test asks the hub that it starts itself
os.environ["XDG_CACHE_HOME"] = str(ROOT / "build" / "cache")
os.environ["MPLCONFIGDIR"] = str(ROOT / "build" / "cache" / "matplotlib")  # its list of the fonts of this machine
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes import the package
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # no stack of pytest with every operation of a program

# A shell without job control starts what runs in the background with SIGINT ignored, and tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import filelock
import jax
import pytest
from jax._src.lru_cache import LRUCache

from bert_jax.devices.compilation import use_compilation_cache

jax.config.update("jax_numpy_rank_promotion", "raise")  # arrays of different ranks do not meet by accident
use_compilation_cache()
# Before it keeps a program JAX reads the size and the time of use of every other one: 30 ms where there are 800.
assert hasattr(LRUCache, "_evict_if_needed")  # it is private: a new name would bring the wait back unnoticed
LRUCache._evict_if_needed = lambda self, *, additional_size=0: None
if jax.config.jax_compilation_cache_dir is not None:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = jax.config.jax_compilation_cache_dir
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(jax.config.jax_compilation_cache_max_size)
# The processes that tests start only read it: one that is killed as it writes would leave a torn program.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "inf"

SHARED_DATA = ROOT.parent / "shared" / "data"
LONGEST_FIRST = (
    *("pretraining", "finetuning", "checkpoints/test_lost_workdir", "training", "devices", "pretrained", "models"),
    *("commands", "planning", "bench", "project", "checkpoints"),
)


# Tracing makes many objects and little garbage; with Python's thresholds an eighth of the time goes to looking for it.
gc.set_threshold(20_000, 20, 20)


def pytest_collection_finish() -> None:
    """Spare the collector the modules and the collected tests, which live to the end."""
    gc.freeze()


def pytest_collection_modifyitems(items) -> None:
    """Begin with the files that take minutes, so that no worker is left alone with one of them at the end."""
    files = [*LONGEST_FIRST, ""]
    items.sort(key=lambda item: next(i for i, name in enumerate(files) if f"tests/{name}" in item.nodeid))


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory) -> None:
    """No test reads or writes the user's own cache directory; the processes that tests start inherit the variable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_implicit_transfers() -> None:
    """Guard every step and evaluation of the real loops: arrays come to the devices on purpose or not at all."""
    from bert_jax.training.step import Program

    call = Program.__call__

    def guarded(self, *arguments):
        self.prepare(*arguments)
        with jax.transfer_guard("disallow"):
            return call(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "__call__", guarded)
        yield


@pytest.fixture(scope="session", autouse=True)
def errors_of_one_line() -> None:
    """No test meets a UserError of several lines, but for the one that lists answers of SQuAD under each other."""
    from bert_jax.errors import UserError

    def checked(self, message: str) -> None:
        assert "\n" not in message or "answer_start counts characters" in message, message
        Exception.__init__(self, message)  # for a class that makes its message of arguments of its own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UserError, "__init__", checked)
        yield


@pytest.fixture(scope="session", autouse=True)
def fresh_interpreter() -> None:
    """End the interpreter that tests have asked for new processes, and the one that forks workers, if any."""
    import fresh

    yield
    fresh.end()
    end_forks()


@pytest.fixture(scope="session", autouse=True)
def no_pictures() -> None:
    """Spare all runs but those of tests with the fixture `pictures` their curves."""
    import pictures

    with pytest.MonkeyPatch.context() as patch:
        pictures.leave_out(patch.setattr)
        yield


@pytest.fixture
def pictures(monkeypatch) -> None:
    """Draw the curves of runs after all."""
    from pictures import draw_curves

    monkeypatch.setattr("bert_jax.training.metrics.draw_curves", draw_curves)


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Real text and vocabularies that lie beside the checkout on development machines; never part of the repository."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the development data directory ../shared/data is not on this machine")
    return SHARED_DATA


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """`made_once(name, make)`: what `make(directory)` returns, made by the first worker of xdist that asks for it.

    The directory is common to all workers, which only read it; the returned value is pickled.
    """
    own = tmp_path_factory.getbasetemp()
    common = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "common"
    common.mkdir(exist_ok=True)

    def once(name: str, make):
        place, returned = common / name, common / f"{name}.pickle"
        with filelock.FileLock(common / f"{name}.lock"):
            if not returned.exists():
                shutil.rmtree(place, ignore_errors=True)  # of a worker that failed
                place.mkdir()
                returned.write_bytes(pickle.dumps(make(place)))
        return pickle.loads(returned.read_bytes())

    return once


@pytest.fixture(scope="session")
def small_store(made_once) -> pathlib.Path:
    """A token store made by the real commands from 300 small documents, in a directory that also has vocab.txt."""
    import documents

    from bert_jax.config import PrepareConfig, TrainVocabConfig
    from bert_jax.data.preparation.prepare import run_prepare
    from bert_jax.data.preparation.vocabularies import run_train_vocab

    def make(place: pathlib.Path) -> pathlib.Path:
        corpus, vocab, store = documents.write(place / "corpus.txt", 300), place / "vocab.txt", place / "store"
        run_train_vocab(TrainVocabConfig(input=str(corpus), output=str(vocab), size=200))
        run_prepare(PrepareConfig(input=str(corpus), vocab=str(vocab), output=str(store), sentences="lines", workers=1))
        return store

    return made_once("small", make)


@pytest.fixture(scope="session")
def finished(small_store, made_once):
    """A pre-training run that nothing interrupted: its configuration and result. Tests that write use a copy."""
    from small_pretraining import pretrain, run_config

    def make(place: pathlib.Path):
        config = run_config(small_store, place / "uninterrupted")
        return config, pretrain(config)

    config, result = made_once("runs", make)
    before = _files(pathlib.Path(config.workdir))
    yield config, result
    assert _files(pathlib.Path(config.workdir)) == before, "a test has changed the run that others read"


def _files(directory: pathlib.Path) -> dict[str, tuple[int, int]]:
    """The size and the time of the last change of every file below `directory`."""
    status = {path: path.stat() for path in sorted(directory.rglob("*")) if path.is_file()}
    return {str(path): (found.st_size, found.st_mtime_ns) for path, found in status.items()}


@pytest.fixture(scope="session")
def pretrained(made_once) -> pathlib.Path:
    """A directory with pretrained/ (a work directory with fresh weights) and data/ (train, dev and unlabeled test)."""
    import small_finetuning

    return made_once("finetuning", small_finetuning.write)


@pytest.fixture(scope="session")
def two_seeds(pretrained, made_once):
    """A finished fine-tuning of two seeds, all weights kept: its configuration and results."""
    from small_finetuning import run_config
    from small_pretraining import finetune

    def make(place: pathlib.Path):
        config = run_config(pretrained, place / "work", seeds=2, keep="all")
        return config, finetune(config).results

    return made_once("two_seeds", make)


@pytest.fixture(scope="session")
def peer() -> str:
    """A Python with torch and transformers."""
    if "BERT_JAX_PEER" in os.environ:
        return os.environ["BERT_JAX_PEER"]
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        pytest.skip("torch and transformers are not installed, and BERT_JAX_PEER names no Python that has them")
    return sys.executable
