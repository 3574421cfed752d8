"""Files of a work directory, a store or a checkpoint with something changed: refused in one line, or read right.

`python tests/commands/test_fuzz.py SUBJECT FIRST COUNT DIRECTORY` runs cases alone and leaves the directory of each
failure there.
"""

import faulthandler
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zlib

import numpy as np
import pytest

SEED = 20181011
SHARE = 1 if "BERT_JAX_EXHAUSTIVE" in os.environ else 4
CASES = [
    ("pretraining", 0, 150 // SHARE),
    ("finetuned", 0, 80 // SHARE),
    ("store", 0, 100 // SHARE),
    ("huggingface", 0, 80 // SHARE),
    ("torch", 0, 80 // SHARE),
    ("tf1", 0, 80 // SHARE),
]
"""What is damaged, the first case, and how many. The command above runs as many more as one has time for."""
LONGEST_MESSAGE = 1_500


class Fuzz:
    """The intact directory of one subject and what its readers return for it."""

    def __init__(self, name: str, place: pathlib.Path):
        from fuzz_subjects import SUBJECTS

        self.name, self.place, self.intact = name, place, place / name
        self.subject = SUBJECTS[name]
        place.mkdir(parents=True, exist_ok=True)
        self.subject.write(self.intact)
        self.files = sorted((path for path in self.intact.rglob("*") if path.is_file()), key=self._order)
        self.expected = [self._read_all("", ""), self._read_all("", self.subject.older)]

    def _order(self, file: pathlib.Path) -> tuple:
        """Names that Orbax draws at random do not count."""
        return re.sub("[0-9a-f]{32}", "", str(file.relative_to(self.intact))), file.stat().st_size, file.read_bytes()

    def _read_all(self, damaged: str, without: str) -> list:
        shutil.copytree(self.intact, self.place / "copy")
        if without:
            shutil.rmtree(self.place / "copy" / without)
        values = [read(self.place / "copy", damaged) for read in self.subject.readers]
        shutil.rmtree(self.place / "copy")
        return values

    def run(self, number: int) -> list[str]:
        """What is wrong with one case, a line each; its directory stays if there is anything."""
        from file_damage import damage

        random = np.random.default_rng([SEED, zlib.crc32(self.name.encode()), number])
        nested = [file for file in self.files if "checkpoints" in file.parts]
        plain = [file for file in self.files if file not in nested]
        group = nested if nested and random.random() < 0.5 else plain
        file = group[random.integers(len(group))].relative_to(self.intact)
        directory = self.place / f"case{number}"
        shutil.copytree(self.intact, directory)
        label = f"{self.name} {number}: {file}: {damage(directory / file, random)}"
        print(label, flush=True)
        wrong = [
            f"{label}: {read.__name__}: {problem}"
            for index, read in enumerate(self.subject.readers)
            if (problem := self._problem(read, directory, str(file), [values[index] for values in self.expected]))
        ]
        if not wrong:
            shutil.rmtree(directory)
        return wrong

    def _problem(self, read, directory: pathlib.Path, damaged: str, expected: list) -> str | None:
        from bert_jax.errors import UserError

        try:
            value = read(directory, damaged)
        except UserError as error:
            message = str(error)
            return f"message {message[:3_000]!r}" if "\n" in message or len(message) > LONGEST_MESSAGE else None
        except OSError as error:  # the command line makes one line of it
            return None if error.filename and error.strerror else f"{type(error).__name__}: {error}"
        except Exception as error:
            at = error.__traceback__
            while at.tb_next is not None:
                at = at.tb_next
            return f"{type(error).__name__}: {str(error)[:300]!r} in {at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
        return None if value in expected else f"read as {str(value)[:300]}"


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name, first, count", CASES)
def test_damage_is_refused_in_one_line_or_read_right(name, first, count, tmp_path):
    """In a process of its own, so that one that aborts or hangs is seen: the last line is the case."""
    command = [sys.executable, __file__, name, str(first), str(count), str(tmp_path)]
    alone = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=alone)  # which does not have tests/support yet
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"exit code {done.returncode} after {last}\n{done.stderr[-20_000:]}"
    assert json.loads(last[0]) == {"cases": count}
    assert "Exception ignored" not in done.stderr and "Traceback" not in done.stderr, done.stderr[-20_000:]


def main(name: str, first: str, count: str, place: str) -> int:
    from processes import SECONDS

    faulthandler.enable()
    fuzz = Fuzz(name, pathlib.Path(place))
    wrong = []
    for number in range(int(first), int(first) + int(count)):
        faulthandler.dump_traceback_later(SECONDS, exit=True)  # of one case
        wrong += fuzz.run(number)
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"cases": int(count)}))
    print("\n".join(wrong), file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))  # as pytest does
    sys.exit(main(*sys.argv[1:]))
