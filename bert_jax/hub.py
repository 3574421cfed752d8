"""Models and data sets of the Hugging Face hub by name: found in its cache on this machine, else downloaded.

A model is `hf://owner/name[@revision]`, or `owner/name` where nothing here has the name of the owner; a data set is
`hf://datasets/owner/name[@revision][:configuration[:split]]`. A revision is a branch, a tag or a commit, by default
the branch main. What is recorded of a run is the name with the commit, which always means the same files.

Of a model's repository only the files are fetched that the readers open; code in it is never fetched, let alone run.
The package huggingface_hub, with its cache, settings (HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN) and bars, does
the work. It comes with the extra `hub`, and is imported when a name is resolved.
"""

import contextlib
import dataclasses
import functools
import logging
import os
import re
from collections.abc import Iterator
from typing import Any, Literal

from bert_jax import progress
from bert_jax.errors import UserError, need_extra

PREFIX, DATASETS = "hf://", "hf://datasets/"
TEXT_FILES, NESTED = ["*.json", "*.txt", "*.model"], ["*/*/*", "*/*.txt", "*/*.model"]
"""Files of a model's options and vocabulary, and those that are too deep to be; 1_Pooling/config.json is not."""
WEIGHTS = (r"model(-\d+-of-\d+)?\.safetensors", r"pytorch_model(-\d+-of-\d+)?\.bin")
"""Names of the files of its arrays; those of the first kind that there is are fetched."""
OTHER_WEIGHTS = (".safetensors", ".bin", ".h5", ".msgpack", ".onnx", ".pt", ".pth", ".ckpt", ".gguf")

FILES = (".txt", ".json", ".model", *OTHER_WEIGHTS)
"""Ends of names that are paths, unless they begin with hf://."""

_PART = r"\w[\w.-]*"
_MODEL = re.compile(rf"(?P<repository>{_PART}/{_PART})(@(?P<revision>[^@:\s]+))?")
_DATASET = re.compile(_MODEL.pattern + r"(:(?P<configuration>[^:\[\]]*)(:(?P<split>.+))?)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
Kind = Literal["model", "dataset"]


@dataclasses.dataclass(frozen=True)
class HubName:
    """Name of a repository of the hub, as it was given or with its commit."""

    kind: Kind
    repository: str
    """OWNER/NAME."""
    revision: str = ""
    configuration: str = ""
    """Of a data set; empty for its default."""
    split: str = ""
    """Of a data set, as `datasets.load_dataset` takes it: train, train[:1%]; empty if it is not given."""

    def __str__(self) -> str:
        """Return the name in the form that is recorded, and can be given again."""
        revision = f"@{self.revision}" if self.revision else ""
        end = f":{self.configuration}" if self.configuration or self.split else ""
        end += f":{self.split}" if self.split else ""
        return f"{DATASETS if self.kind == 'dataset' else PREFIX}{self.repository}{revision}{end}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit."""
        return _COMMIT.fullmatch(self.revision) is not None


def model_name(path: str) -> HubName | None:
    """Return the model of the hub that `path` names; None if it is a path.

    Without hf:// it does if its form is owner/name, and nothing here has the name of the owner.

    Raises:
      UserError: it begins with hf://, but the rest names no model.
    """
    if not path.startswith(PREFIX):
        match = re.fullmatch(rf"({_PART})/{_PART}", path)
        is_path = match is None or path.endswith(FILES) or os.path.exists(match[1])
        return None if is_path else HubName("model", path)
    if path.startswith(DATASETS):
        raise UserError(f"{path} is a data set, where a model is expected: hf://owner/name or hf://owner/name@revision")
    match = _MODEL.fullmatch(path.removeprefix(PREFIX).removeprefix("models/"))
    if match is None:
        raise UserError(f"{path:.200} does not name a model of the hub: it must be hf://owner/name[@revision]")
    return HubName("model", match["repository"], match["revision"] or "")


def dataset_name(name: str) -> HubName:
    """Return the data set that `name` names, with or without hf://datasets/.

    Raises:
      UserError: it names none.
    """
    match = _DATASET.fullmatch(name.removeprefix(DATASETS))
    if match is None:
        raise UserError(
            f"{name:.200} does not name a data set of the hub: it must be "
            f"{DATASETS}owner/name[@revision][:configuration[:split]]"
        )
    parts = {key: value or "" for key, value in match.groupdict().items()}
    return HubName("dataset", **parts)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Files of a model on this machine."""

    directory: str
    name: HubName
    """The name with the commit that they are of."""


def local_path(path: str, weights: bool = True) -> str:
    """Return the directory here of a model if `path` is its name on the hub, else `path`; see `model_files`."""
    name = model_name(path)
    return path if name is None else model_files(name, weights).directory


def model_files(name: HubName, weights: bool = True) -> Snapshot:
    """Return the files of a model, fetching what is not here yet; without `weights` those of its vocabulary alone.

    With a commit, nothing is asked of the network if all of them are here.

    Raises:
      UserError: there is no such model or revision, or nobody may read it without an account; the hub cannot be reached
        and the cache lacks a file; or there are no weights of a kind that is read here.
    """
    name, client = pinned(name), _client(name)
    fetch = functools.partial(
        client.snapshot_download, name.repository, revision=name.revision, tqdm_class=_bar_of_long_downloads()
    )
    with errors_told(name):
        directory = fetch(allow_patterns=TEXT_FILES, ignore_patterns=NESTED)
        if weights:
            fetch(allow_patterns=_weights(name, directory))
    return Snapshot(directory, name)


def _bar_of_long_downloads() -> type:
    """Return the bar of huggingface_hub, shown where people look, if a download takes a second, until it ends."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any):
            shown = {"delay": 1, "leave": False} if progress.are_seen() else {"disable": True}
            super().__init__(*args, **{**options, **shown})

    return Bar


def _weights(name: HubName, directory: str) -> list[str]:
    """Return the names of the files of weights to fetch."""
    import huggingface_hub
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        listed = [each.path for each in huggingface_hub.get_cached_repo_tree(name.repository, revision=name.revision)]
    except CachedRepoTreeNotFoundError:  # an older version of the package filled the cache
        listed = os.listdir(directory)
    for kind in WEIGHTS:
        if found := [file for file in listed if re.fullmatch(kind, file)]:
            return found
    others = [file for file in listed if file.endswith(OTHER_WEIGHTS)]
    raise UserError(
        f"{name} has neither model.safetensors nor pytorch_model.bin, but {', '.join(others[:5]) or 'no weights'}; its "
        "owner can save it with save_pretrained of transformers"
    )


def pinned(name: HubName) -> HubName:
    """Return a name with the commit that its revision is at, or was when the hub was last reached.

    Raises:
      UserError: there is no such repository or revision; or the hub cannot be reached, and never was for it.
    """
    if name.is_pinned:
        return name
    client = _client(name)
    with errors_told(name):
        found = client.resolve_revision(name.repository, repo_type=name.kind, revision=name.revision or None).resolved
        if not _COMMIT.fullmatch(found):
            raise ValueError(f"its commit is {found!r:.60}")
    return dataclasses.replace(name, revision=found)


def recorded_name(given: str, recorded: str = "", kind: Kind = "model") -> str:
    """Return what a run records where a model or a data set was `given`: of a name of the hub, that with its commit.

    Args:
      given: a name of the hub, or anything else, which stays as it is.
      recorded: what the first start recorded, if it is another one: a name without a revision keeps its commit, and so
        does any where the hub cannot be reached, so that a command can be started again wherever main is by then.
    """
    name = (dataset_name(given) if given else None) if kind == "dataset" else model_name(given)
    if name is None:
        return given
    try:
        before = dataset_name(recorded) if kind == "dataset" else model_name(recorded)
    except UserError:  # a path, or nothing
        before = None
    known = before is not None and before.is_pinned and dataclasses.replace(before, revision=name.revision) == name
    if known and not name.revision:
        return recorded
    try:
        return str(pinned(name))
    except UserError:
        if not known:
            raise
        return recorded


def check_writable(name: HubName, private: bool) -> None:
    """Make the repository of a model unless it is there, so that an upload that is not allowed fails before any work.

    `private`: whether one that is made can be seen by its owner alone.

    Raises:
      UserError: there is no account here, it may not write there, or the hub cannot be reached.
    """
    client = _client(name)
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        raise UserError(f"to write {name}, log in: hf auth login, or a token with the right to write in HF_TOKEN")
    with errors_told(name):
        client.create_repo(name.repository, private=private, exist_ok=True)


def push(directory: str | os.PathLike[str], name: HubName) -> str:
    """Upload the files of a directory in one commit to a repository that is there; return the commit's address.

    Raises:
      UserError: this account may not write there, there is no such branch, or the hub cannot be reached.
    """
    with errors_told(name):
        uploaded = _client(name).upload_folder(
            repo_id=name.repository,
            folder_path=directory,
            revision=name.revision or None,
            commit_message="Model written by bert_jax",
        )
    return str(uploaded.commit_url)


def _client(name: HubName) -> Any:
    """Return what talks to the hub; raise a UserError that names the extra if it is not installed."""
    need_extra("huggingface_hub", "hub", f"{name}, a name of the Hugging Face hub,")
    import huggingface_hub

    return huggingface_hub.HfApi(library_name="bert_jax")


@contextlib.contextmanager
def errors_told(name: HubName) -> Iterator[None]:
    """Turn the errors of huggingface_hub within the block into UserErrors about `name`; print its warnings once."""
    from huggingface_hub import errors

    login = "log in with an account that may (hf auth login, or a token in HF_TOKEN)"
    try:
        with _without_echo("huggingface_hub", "datasets"):
            yield
    except errors.GatedRepoError:
        raise UserError(f"{name} is gated: accept its conditions on its page of the hub, and {login}") from None
    except errors.RepositoryNotFoundError:
        here = ", nor a directory of that name here" if name.kind == "model" else ""
        kind = {"model": "model", "dataset": "data set"}[name.kind]
        raise UserError(
            f"there is no {kind} {name.repository} on the hub{here}; check the name or, if it is private, {login}"
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(
            f"{name.repository} has no revision {name.revision or 'main'} on the hub; give a branch, a tag or a commit "
            "that it has"
        ) from None
    except errors.HFValidationError as error:
        raise UserError(f"{name} cannot be a name of the hub: {_line(error)}") from None
    except (errors.LocalEntryNotFoundError, errors.RevisionResolutionError, ConnectionError) as error:
        raise _unreachable(name, error) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            raise UserError(f"the hub refuses {name} ({status}): {login}") from None
        raise UserError(f"the hub answers {status} to {name}: {_line(error)}; try again later") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "requests"):
            raise _unreachable(name, error) from None
        if isinstance(error, OSError):
            raise UserError(f"{name} cannot be kept in the cache here: {_line(error)}") from None
        if isinstance(error, (ValueError, LookupError, TypeError, AttributeError, AssertionError)):
            raise UserError(
                f"the answer about {name} is not that of a hub ({type(error).__name__}: {_line(error)}); a proxy may "
                "have given it, or HF_ENDPOINT names something else"
            ) from error
        raise


@contextlib.contextmanager
def _without_echo(*names: str) -> Iterator[None]:
    """Keep what these loggers print themselves from the handlers of the process, which would print it again."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagates in zip(loggers, before, strict=True):
            logger.propagate = propagates


def _unreachable(name: HubName, error: BaseException) -> UserError:
    while error.__cause__ is not None:
        error = error.__cause__
    why = "HF_HUB_OFFLINE is set" if type(error).__name__ == "OfflineModeIsEnabled" else _line(error)
    return UserError(
        f"{name} is not whole in the cache of this machine, and the hub cannot be reached ({why}); start this once "
        f"with a network, or give a local directory; there is none named {name.repository}"
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
