"""The embedded corpus is prose, in a fixed order, and reading it runs nothing."""

import sys
import sysconfig

import pytest

from bert_jax.corpus import documentation
from bert_jax.corpus.text import make_splitter

GOOGLE = """Computes the `mean` of all of the elements in the array.

    This is the first line of a paragraph that is wrapped
    over two lines, see :func:`~numpy.median` and [the guide](https://example.org/guide).

    >>> mean([1, 2])
    1.5

    Args:
      values: The numbers that are to be averaged, as a list or an array.
      axis (int): 0.

    Example::

        result = mean(values)  # The mean of the values is computed here for you.

    Returns:
      The mean, which is a scalar of the same type as the values.

    ```python
    The code in this block is not a sentence of the corpus.
    ```
    """
NUMPY = """
    Return the standard deviation of the values along an axis.

    Parameters
    ----------
    values : array_like
        The values of which the deviation is to be computed.

    Notes
    -----
    The square of it is the variance [1]_, as it is in every book.

    ======  =========================================
    a       The table is a thing that is to be left out.
    ======  =========================================

    .. versionadded:: 1.7 of the library is the first with it.
    """


def test_prose_of_docstrings():
    assert documentation.prose(GOOGLE) == [
        "Computes the mean of all of the elements in the array.",
        "This is the first line of a paragraph that is wrapped over two lines, see numpy.median and the guide.",
        "The numbers that are to be averaged, as a list or an array.",
        "The mean, which is a scalar of the same type as the values.",
    ]
    assert documentation.prose(NUMPY) == [
        "Return the standard deviation of the values along an axis.",
        "The values of which the deviation is to be computed.",
        "The square of it is the variance, as it is in every book.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "TODO.",
        "Dies ist ein deutscher Satz, der hier nicht bleiben soll und darf.",
        "x = f(y) + g(z) ** 2 # a.b.c.d",
        "no full stop at the end of the line",
        "a.b.c d.e.f g_h_i j(k) l[m] n{o} the.",
    ],
)
def test_what_is_not_english_prose_is_dropped(text):
    assert documentation.prose(text) == []


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library directory of our own in place of the installation's."""
    monkeypatch.setattr(sysconfig, "get_paths", lambda: dict.fromkeys(("stdlib", "purelib", "platlib"), str(tmp_path)))
    monkeypatch.setattr(documentation, "MIN_DOCUMENT_CHARACTERS", 20)
    return tmp_path


def write(path, source):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source if isinstance(source, bytes) else source.encode())


def test_a_module_is_a_document_and_nothing_is_run(library):
    write(
        library / "b.py",
        '"""The module is about the letter b."""\nraise SystemExit\n'
        'class C:\n  """The class is documented in the module."""\n'
        '  def f(self):\n    """The method is in the class of it."""\n',
    )
    write(library / "a" / "__init__.py", '"""The package comes before the module in the order."""')
    write(
        library / "pydoc_data" / "topics.py",
        "topics = {'x': '''The first topic is a text of its own.''', 'y': 'The second is one of the two.'}",
    )
    write(library / "tests" / "c.py", '"""The tests are not a part of the corpus."""')
    write(library / "a" / "test_d.py", '"""The test file is not a part of it."""')
    write(library / "broken.py", b'"""The file is not Python')
    write(library / "latin.py", b'"""The file is not in UTF-8: \xff and so on."""')
    write(library / "z.py", '"""The module is about the letter b.\n\nThe rest of it is new to the corpus."""')
    texts = [text for text, _ in documentation.documents()]
    assert texts == [
        "The package comes before the module in the order.",
        "The module is about the letter b.\nThe class is documented in the module.\nThe method is in the class of it.",
        "The first topic is a text of its own.",
        "The second is one of the two.",
        "The rest of it is new to the corpus.",
    ]
    assert [share for _, share in documentation.documents()][-1] == 1


def test_the_description_follows_the_files(library):
    write(library / "a.py", '"""One."""')
    before = documentation.describe()
    assert before[0] == 10 and documentation.describe() == before
    write(library / "a.py", '"""Three."""')
    assert documentation.describe() != before


def test_the_standard_library_alone_is_a_corpus(monkeypatch):
    """Tens of thousands of sentences without any package, most of them as English as the language reference."""
    stdlib = sysconfig.get_paths()["stdlib"]
    monkeypatch.setattr(sysconfig, "get_paths", lambda: dict.fromkeys(("stdlib", "purelib", "platlib"), stdlib))
    before = set(sys.modules)
    texts = [text for text, _ in documentation.documents()]
    assert not {name for name in set(sys.modules) - before if name.startswith("pydoc_data")}
    split = make_splitter("split")
    sentences = [sentence for text in texts for sentence in split(text.split("\n"))]
    lines = [line for text in texts for line in text.split("\n")]
    assert (
        len(texts) > 250 and len(sentences) > 10_000
    )  # 320 and 13,790 in Python 3.11; 3.12 and 3.13 have fewer modules
    assert len(set(lines)) == len(lines)
    assert any("statement is used to wrap the execution of a block" in line for line in lines)
    assert not any(">>>" in line or "```" in line for line in lines)
