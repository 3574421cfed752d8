"""The copy of a remote store on the local disk: each file is fetched when it is first needed, and verified."""

import fcntl
import os
import pathlib
import shutil
import uuid

import numpy as np
from etils import epath

from bert_jax.data.store.manifest import Manifest, hash_file, shard_file
from bert_jax.data.store.verification import VerificationRecord, check_boundaries
from bert_jax.errors import UserError


class FetchedFiles:
    """Files of a remote store in `directory`, as far as they have been needed.

    Processes of a host may share the directory: a file is fetched by one of them, and the others wait for it.
    """

    def __init__(self, remote: epath.Path, directory: pathlib.Path, manifest: Manifest):
        self.remote, self.directory, self.manifest = remote, directory, manifest
        self._hashes = {file.name: file.sha256 for file in manifest.files}

    def fetch_tokenizer(self) -> None:
        """Bring the files of the tokenizer, which are small, to the local disk."""
        for name in self._hashes:
            if name.startswith("tokenizer/"):
                self._fetch(name)

    def fetch_shard(self, index: int, part: str) -> None:
        """Bring a file of a shard to the local disk, unless it is there and unchanged.

        Raises:
          UserError: it cannot be copied, or is not what `prepare` wrote.
        """
        self._fetch(shard_file(index, part), None if part == "tokens" else (index, part))

    def _fetch(self, name: str, boundaries: tuple[int, str] | None = None) -> None:
        file = self.directory / name
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with (self.directory / f"{file.name}.lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if file.is_file():
                    record = VerificationRecord(self.manifest, [file])
                    if not record.exists():
                        self._check(name, file, boundaries)
                        record.write()
                else:
                    self._copy(name, boundaries)
        except OSError as error:
            raise UserError(
                f"cannot copy {self.remote / name} to {self.directory}: {error.strerror or error}"
            ) from error

    def _copy(self, name: str, boundaries: tuple[int, str] | None) -> None:
        """Copy a file; it gets its name when it has been verified."""
        partial = self.directory / f"{name}.{uuid.uuid4().hex}.partial"
        try:
            with (self.remote / name).open("rb") as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 24)
            self._check(name, partial, boundaries)
            os.replace(partial, self.directory / name)
        finally:
            partial.unlink(missing_ok=True)

    def _check(self, name: str, file: pathlib.Path, boundaries: tuple[int, str] | None) -> None:
        if hash_file(file) != self._hashes[name]:
            raise UserError(
                f"{self.directory}: the content of {name} is not what `bert-jax prepare` wrote to {self.remote}; "
                "delete it and copy or prepare the store again"
            )
        if boundaries:
            check_boundaries(self.directory, self.manifest, *boundaries, np.memmap(file, "<u8", "r"))
