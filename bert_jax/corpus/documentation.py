"""The embedded corpus: the English documentation that comes with every Python installation.

It is made of `pydoc_data.topics` (the language reference) and the docstrings of the standard library and of every
installed package, read with `ast`: nothing is imported or run. Each module is a document, and so is each topic of the
reference; each paragraph is a line. Everything but prose (signatures, parameter tables, code, doctests, markup) is
left out, and a paragraph that several modules repeat is kept once. The result depends on the installed packages: it
serves demonstrations and tests, not comparisons between machines.
"""

import ast
import collections
import hashlib
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator

MIN_WORDS = 5
MIN_DOCUMENT_CHARACTERS = 400
MAX_FILE_BYTES = 2_000_000  # longer ones are tables and generated bindings

_SKIPPED_DIRECTORIES = frozenset(
    ("test", "tests", "testing", "testdata", "idlelib", "lib2to3", "site-packages", "__pycache__", "_vendor", "vendor")
)
_SKIPPED_FILES = re.compile(r"test_.*|.*_test|.*_pb2(_grpc)?|gen_.*|conftest|_?version")
_FUNCTION_WORDS = frozenset(
    "the of a an to is in and for that this it be are with".split()
    + "as by on or if not from which can will when at has was its".split()
)
_SECTION = re.compile(
    r"(args?|arguments?|parameters?|other parameters|returns?|raises?|yields?|examples?|notes?|see also|references?|"
    r"attributes?|usage|methods?|warnings?|warns?|todo|keyword args|since|deprecated)\s*:{0,2}",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r"[\w*., ]+ : \S.*")  # numpydoc's `name : type`, before the description
_UNDERLINE = re.compile(r"([=\-~^*#\"'`+.:_])\1{2,}")
_ITEM = re.compile(r"([-*+•]|\d+[.)]|[`*]{0,2}[\w.*, ]{1,40}[`*]{0,2}( ?\([^)]*\))?:(?=\s))\s+")
_CODE = re.compile(
    r"(>>>|\.\.\. |\.\. |\$ |@\w|In \[|#|[|+][-=|+ ]|:\w+[^:]*:|(def|class|import|from|return|with) .*[:(]?$)"
)
_MARKUP = (
    (re.compile(r":[\w:+.-]+:`~?\.?([^`<]+?)(?:\s*<[^>]*>)?`"), r"\1"),  # :class:`~package.Name`
    (re.compile(r"`([^`<]+?)(?:\s*<[^>]*>)?`_{0,2}"), r"\1"),
    (re.compile(r"`+"), ""),
    (re.compile(r"\*\*(\S[^*]*)\*\*"), r"\1"),
    (re.compile(r"\[([^\]]+)\]\([^)\s]+\)"), r"\1"),  # [text](address)
    (re.compile(r"\s*\[[\d#, ]+\]_?"), ""),  # [1]_
)

_parsed: dict[tuple[int, str], list[tuple[str, float]]] = {}  # results of `documents` by result of `describe`


def describe() -> tuple[int, str]:
    """Return (bytes of the files to read, digest of their names and sizes)."""
    files = [(name, os.path.getsize(path)) for name, path in _modules()]
    return sum(size for _, size in files), hashlib.sha256(repr(files).encode()).hexdigest()


def documents() -> Iterator[tuple[str, float]]:
    """Yield (document, share of the files read by then), sorted by module name; paragraphs are lines.

    Parsing the files takes much longer than anything else done with them, so a process does it once.
    """
    revision = describe()
    if revision in _parsed:
        yield from _parsed[revision]
        return
    found, seen, modules = [], set(), _modules()
    for number, (name, path) in enumerate(modules, start=1):
        for texts in _texts(name, path):
            paragraphs = [p for text in texts for p in prose(text) if _is_new(p, seen)]
            if sum(map(len, paragraphs)) >= MIN_DOCUMENT_CHARACTERS:
                found.append(("\n".join(paragraphs), number / len(modules)))
                yield found[-1]
    _parsed[revision] = found


def prose(text: str) -> list[str]:
    """Return the paragraphs of running English in a docstring, each one string without line breaks."""
    lines = re.sub(r"(?s)(```|~~~).*?(\1|$)", "\n", inspect.cleandoc(text)).split("\n")
    return [clean for paragraph in _paragraphs(lines) if _is_prose(clean := _clean(paragraph))]


def _modules() -> list[tuple[str, str]]:
    """Return sorted (module name, path) of every Python file under the library directories."""
    found = {}
    for root in dict.fromkeys(os.path.realpath(sysconfig.get_paths()[key]) for key in ("stdlib", "purelib", "platlib")):
        for directory, subdirectories, files in os.walk(root):
            subdirectories[:] = [d for d in subdirectories if d not in _SKIPPED_DIRECTORIES and d.isidentifier()]
            for file in files:
                stem, extension = os.path.splitext(file)
                if extension == ".py" and not _SKIPPED_FILES.fullmatch(stem):
                    path = os.path.join(directory, file)
                    found.setdefault(os.path.relpath(path, root)[:-3].replace(os.sep, "."), path)
    return sorted(found.items())


def _texts(name: str, path: str) -> Iterator[list[str]]:
    """Yield the docstrings of a module as one list, or each topic of pydoc_data.topics as a list of its own."""
    try:
        with open(path, "rb") as file:
            source = file.read(MAX_FILE_BYTES + 1)
        if len(source) > MAX_FILE_BYTES or (b'"""' not in source and b"'''" not in source):
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's files
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    if name == "pydoc_data.topics":
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                yield from (
                    [value.value]
                    for value in node.values
                    if isinstance(value, ast.Constant) and isinstance(value.value, str)
                )
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    yield [
        text
        for node in _statements(tree)
        if isinstance(node, documented) and (text := ast.get_docstring(node, clean=False))
    ]


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module and its statements in the order of `ast.walk`, which takes longer: it visits expressions too."""
    left: collections.deque[ast.AST] = collections.deque([tree])
    while left:
        node = left.popleft()
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            left.extend(getattr(node, name, ()))
        yield node


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Group lines into paragraphs: a blank line, a list item, a section heading or a change to code ends one."""
    paragraph: list[str] = []
    literal_indent = None  # indentation of the text whose final `::` announced a literal block
    for line in [*lines, ""]:
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        if literal_indent is not None and bare:
            if indent > literal_indent:
                continue
            literal_indent = None
        if _UNDERLINE.fullmatch(bare):
            paragraph = []  # the heading above it
        elif not bare or _PARAMETER.fullmatch(bare) or _SECTION.fullmatch(bare) or _CODE.match(bare):
            yield paragraph
            paragraph = []
        elif _ITEM.match(bare):
            yield paragraph
            paragraph = [_ITEM.sub("", bare, count=1)]
        else:
            paragraph.append(bare)
        if bare.endswith("::"):
            literal_indent = indent


def _clean(paragraph: list[str]) -> str:
    text = " ".join(" ".join(paragraph).split())
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return re.sub(r"::$", ":", text.strip())


def _is_prose(text: str) -> bool:
    """Return whether text is English sentences: enough words, mostly letters, function words, a final full stop."""
    words = text.split()
    if len(words) < MIN_WORDS or text[-1] not in ".!?:\"')" or not re.search(r"[.!?]", text):
        return False
    if not (text[0].isupper() or text[0] in "\"'("):
        return False
    plain = sum(word.strip(".,;:!?()\"'").isalpha() for word in words)
    common = sum(word.lower() in _FUNCTION_WORDS for word in words)
    foreign = sum(character.isalpha() and not character.isascii() for character in text)
    return foreign <= 0.01 * len(text) and plain >= 0.75 * len(words) and common >= 0.15 * len(words)


def _is_new(paragraph: str, seen: set[bytes]) -> bool:
    digest = hashlib.blake2b(paragraph.encode(), digest_size=12).digest()
    if digest in seen:
        return False
    seen.add(digest)
    return True
