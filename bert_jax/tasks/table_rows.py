"""Lines of task files: tab-separated without quoting, CSV by RFC 4180, JSON lines; always with the line number.

Lines end in LF or CR LF. Other line separators of Unicode are text, and blank lines are skipped.
"""

import json
import os
import re
from collections.abc import Iterator
from typing import Any

from etils import epath

from bert_jax.errors import UserError

Row = tuple[int, list[str]]
"""(number of the line on which the row begins, from 1; its fields)"""

_CSV_FIELD = re.compile(r'(?:"(?P<quoted>(?:[^"]|"")*+)"|(?P<plain>(?:[^",\r\n]|\r(?!\n))*+))(?P<end>,|\r?\n|\Z)')


def read_text(file: str | os.PathLike[str]) -> str:
    """Return the contents of a UTF-8 file (local or gs://) without its byte order mark.

    Raises:
      UserError: the file cannot be read, or is not UTF-8 (names the line).
    """
    try:
        contents = epath.Path(file).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {os.fspath(file)}: {error.strerror or error}") from None
    return decode(contents, os.fspath(file))


def decode(contents: bytes, name: str) -> str:
    """Return UTF-8 text without its byte order mark; other bytes are a UserError with `name` and the line."""
    try:
        return contents.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = contents.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{name}, line {line}: not UTF-8 (byte 0x{contents[error.start]:02x}); "
            "convert it, for example with iconv -f latin1 -t utf-8"
        ) from None


def lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, line) of every line that is not blank."""
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if line:
            yield number, line


def tsv(text: str) -> Iterator[Row]:
    """Yield the fields between tabs; a quotation mark is an ordinary character, as in GLUE's files."""
    for number, line in lines(text):
        yield number, line.split("\t")


def csv(text: str, file: str | os.PathLike[str]) -> Iterator[Row]:
    """Yield the fields between commas; one in quotation marks may hold commas, line ends and doubled quotation marks.

    Raises:
      UserError: a quotation mark is never closed, or is inside a field without quotation marks.
    """
    place, line, first_line, fields = 0, 1, 1, []
    while place < len(text) or fields:
        match = _CSV_FIELD.match(text, place)
        if not match:
            raise UserError(f"{os.fspath(file)}, line {line}: {_stray_quote(text, place)}")
        fields.append(match["plain"] if match["quoted"] is None else match["quoted"].replace('""', '"'))
        line += match[0].count("\n")
        place = match.end()
        if match["end"] == ",":
            continue
        if fields != [""]:
            yield first_line, fields
        first_line, fields = line, []


def json_lines(text: str, file: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield one JSON object per line.

    Raises:
      UserError: a line is not JSON, or not an object.
    """
    for number, line in lines(text):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{os.fspath(file)}, line {number}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise UserError(
                f'{os.fspath(file)}, line {number}: expected an object {{"text": …}}, not {type(value).__name__}'
            )
        yield number, value


def _stray_quote(text: str, place: int) -> str:
    shown = text[place : place + 30].partition("\n")[0]
    if text[place] != '"':
        reason = "a quotation mark inside a field that has none around it"
    elif re.compile(r'"(?:[^"]|"")*+"').match(text, place):
        reason = "text after a closing quotation mark"
    else:
        reason = "a quotation mark opens here and is never closed"
    return f'{reason}: {shown!r}; in CSV a field with quotation marks is "…" with each mark inside doubled'
