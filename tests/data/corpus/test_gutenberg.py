"""Books of Project Gutenberg, made here with the headers and licences that they have had over the years."""

import gzip
import json

import pytest
from letter_corpus import run

from bert_jax.corpus.readers import read_documents
from bert_jax.errors import UserError

CHAPTERS = [
    "CHAPTER I\nIt was a dark night, and the wind blew over the hills.\n“Who is there?” said she.",
    "CHAPTER II\nEnd.",
]
BODY = (
    "\n\n\n\n\nCHAPTER I\n\n\nIt was a dark night, and the\nwind blew over  the hills.\n\n“Who is there?”\n"
    "  said she.\n\n\n\n\nCHAPTER II\n\nEnd.\n\n\n"
)

# (before the book, after it, lines of the header, lines of the licence, credits)
EDITIONS = {
    "2020s": (
        "\ufeffThe Project Gutenberg eBook of A Night\n\nThis ebook is for the use of anyone\nTitle: A Night\n\n"
        "*** START OF THE PROJECT GUTENBERG EBOOK A NIGHT ***\n\n\n\n\nProduced by A. Person and the\nteam\n\n\n",
        "*** END OF THE PROJECT GUTENBERG EBOOK A NIGHT ***\n\n"
        "Updated editions will replace it.\nSTART: FULL LICENSE\n",
        *(4, 3, 1),
    ),
    "2000s": (
        "Project Gutenberg's A Night, by A. Person\n\n*** START OF THIS PROJECT GUTENBERG EBOOK A NIGHT ***\n\n",
        "End of Project Gutenberg's A Night, by A. Person\n\n*** END OF THIS PROJECT GUTENBERG EBOOK A NIGHT ***\n"
        "***** x\n",
        *(2, 3, 0),
    ),
    "1990s": (
        "**Welcome To The World of Free Plain Vanilla Electronic Texts**\n\n"
        "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\n",
        "End of the Project Gutenberg Etext of A Night\n",
        *(2, 1, 0),
    ),
}


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("name", EDITIONS)
def test_the_book_and_nothing_else(tmp_path, vocab, name, ending):
    before, after, header_lines, licence_lines, credits = EDITIONS[name]
    path = tmp_path / "pg1.txt.gz"
    path.write_bytes(gzip.compress((before + BODY + after).replace("\n", ending).encode()))
    assert list(read_documents(str(path), format="gutenberg")) == CHAPTERS
    run(path, vocab, tmp_path / "store", format="gutenberg")
    removed = json.loads((tmp_path / "store" / "manifest.json").read_text())["removed"]
    assert {entry["what"]: entry["number"] for entry in removed} == {
        what: number
        for what, number in (("header_lines", header_lines), ("licence_lines", licence_lines), ("credits", credits))
        if number
    }


def test_a_text_that_does_not_say_where_the_book_begins(tmp_path, vocab):
    (tmp_path / "a.txt").write_text(BODY)
    with pytest.raises(UserError, match=r"a.txt has no line like \*\*\* START OF .* --format=text") as error:
        run(tmp_path / "a.txt", vocab, tmp_path / "store", format="gutenberg")
    assert "\n" not in str(error.value) and not (tmp_path / "store").exists()
