"""What every step of the pipeline knows, and how a step tells of bad input."""

import contextlib
import dataclasses
from collections.abc import Iterator

from etils import epath

from bert_jax.data.store.manifest import Options
from bert_jax.errors import UserError
from bert_jax.files import is_remote, write_atomically

FAILURES = "failure-*"
"""Names of the files, in the directory of the pipeline, that hold messages of steps."""


@dataclasses.dataclass(frozen=True)
class Work:
    """What every step knows: where the store will be, and where the pipeline keeps its own files."""

    output: str
    directory: str
    options: Options
    dtype: str

    @property
    def blocks(self) -> epath.Path:
        """Where encoded blocks are."""
        return epath.Path(self.directory) / "blocks"

    @property
    def records(self) -> epath.Path:
        """Where the records are in which duplicates are searched."""
        return epath.Path(self.directory) / "records"

    @property
    def scratch(self) -> str | None:
        """Where a worker keeps large files for a while: on the disk of the output, or its own if that is remote."""
        return None if is_remote(self.directory) else self.directory


@contextlib.contextmanager
def telling(work: Work, place: str) -> Iterator[None]:
    """Leave the message of a UserError in a file: runners pass an exception on as some text around its traceback."""
    try:
        yield
    except UserError as error:
        write_atomically(epath.Path(work.directory) / FAILURES.replace("*", place), str(error).encode())
        raise
