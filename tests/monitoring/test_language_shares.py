"""Languages of a store of planted documents, and what else the card says of where a text came from."""

import hashlib
import importlib.util
import json

import pytest
from command_lines import succeed
from documents import VOCABULARY, run

from bert_jax.data.store import open_store
from bert_jax.tools import description as shares
from bert_jax.tools.description import LanguageShare, language_shares

if importlib.util.find_spec("py3langid") is None:
    pytest.skip("py3langid is of the extra `corpora`", allow_module_level=True)

ENGLISH = "the children were playing in the garden while their mother was reading a book under the old tree"
GERMAN = (
    "die kinder spielten im garten und ihre mutter las unter dem alten baum ein buch das ihr der vater gegeben hatte"
)
FRENCH = "les enfants jouaient dans le jardin pendant que leur maman lisait un livre sous le vieil arbre de la maison"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A store of thirty documents in English, nine in German and one, which is as long as all of these, in French."""
    place = tmp_path_factory.mktemp("languages")
    (place / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    documents = [*[ENGLISH] * 30, *[GERMAN] * 9, "\n".join([FRENCH] * 39)]
    (place / "corpus.txt").write_text("\n\n".join(f"{text} x" for text in documents) + "\n")
    run(place / "corpus.txt", str(place / "vocab.txt"), place / "store", license="CC BY-SA <4.0>")
    return place


def tokens(text):
    return len(text.replace(" ", ""))


def test_languages_are_those_of_the_documents(place):
    assert language_shares(open_store(place / "store")) == [
        LanguageShare("en", 30, 30 * (tokens(ENGLISH) + 1)),
        LanguageShare("de", 9, 9 * (tokens(GERMAN) + 1)),
        LanguageShare("fr", 1, 39 * tokens(FRENCH) + 1),
    ]


def test_a_sample_is_drawn_from_a_large_store(place, monkeypatch):
    monkeypatch.setattr(shares, "DRAWN_DOCUMENTS", 20)
    store = open_store(place / "store")
    drawn = [language_shares(store, seed) for seed in range(20)]
    assert {sum(each.documents for each in found) for found in drawn} == {20}
    assert len({str(found) for found in drawn}) > 1
    mean = sum(each.documents for found in drawn for each in found if each.language == "en") / len(drawn)
    assert mean == pytest.approx(15, abs=4 * (20 * 0.75 * 0.25 / len(drawn)) ** 0.5)


def test_the_card_shows_languages_licences_hashes_and_what_was_removed(place, tmp_path):
    books = place / "book.txt"
    books.write_text(
        "*** START OF THE PROJECT GUTENBERG EBOOK A ***\n\nA book.\n\n*** END OF THE PROJECT GUTENBERG EBOOK A ***\nX\n"
    )
    run(books, str(place / "vocab.txt"), tmp_path / "books", format="gutenberg")
    output = tmp_path / "card.html"
    words = ["describe", str(place / "store"), str(tmp_path / "books"), f"--output={output}"]
    succeed(*words)
    first, second = json.loads(output.with_suffix(".json").read_text())
    assert [each["language"] for each in first["languages"]] == ["en", "de", "fr"]
    [source] = first["sources"]
    digest = hashlib.sha256((place / "corpus.txt").read_bytes()).hexdigest()
    assert (source["license"], source["sha256"]) == ("CC BY-SA <4.0>", digest)
    assert {kind["what"]: kind["number"] for kind in second["removed"]}["licence_lines"] == 2
    page = output.read_text()
    assert "CC BY-SA &lt;4.0&gt;" in page and digest in page and "<td>75.0%</td>" in page and "licence_lines" in page


def test_without_the_library_the_card_says_what_is_missing(place, tmp_path, monkeypatch):
    monkeypatch.setattr(shares.importlib.util, "find_spec", lambda name: None)
    assert language_shares(open_store(place / "store")) is None
