"""Sources and stores in a bucket: every format is read from there, resumed, and refused in one line if it is cut."""

import pathlib

import pytest
from cloud_bucket import bucket
from letter_corpus import contents, random_documents, run
from written_sources import NAMES, written

from bert_jax.corpus.blocks import read_blocks
from bert_jax.corpus.readers import find_sources
from bert_jax.errors import UserError

DOCUMENTS = random_documents(60)


@pytest.fixture
def cloud(tmp_path):
    """What the bucket holds, as a local directory."""
    (tmp_path / "cloud" / "bucket").mkdir(parents=True)
    with bucket(tmp_path / "cloud"):
        yield tmp_path / "cloud" / "bucket"


def shards(directory: pathlib.Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(directory).items() if name.startswith("shard-")}


@pytest.mark.parametrize("name", NAMES)
def test_a_store_of_a_bucket_is_that_of_the_same_file_here(tmp_path, cloud, vocab, small_blocks, name):
    written(cloud / name, DOCUMENTS)
    run(f"gs://bucket/{name}", vocab, "gs://bucket/store")
    run(cloud / name, vocab, tmp_path / "here")
    assert shards(cloud / "store") == shards(tmp_path / "here") and len(shards(tmp_path / "here")) > 2


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_a_bucket_resume(cloud, small_blocks, name):
    written(cloud / name, DOCUMENTS)
    [source] = find_sources(f"gs://bucket/{name}")
    whole = list(read_blocks(source))
    assert len(whole) > 5
    for index in (0, len(whole) // 2, len(whole) - 1):
        assert list(read_blocks(source, start=whole[index].end)) == whole[index + 1 :]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("a.txt", "a.jsonl")])
def test_a_file_of_a_bucket_that_is_cut_is_one_line(tmp_path, cloud, vocab, small_blocks, name):
    data = pathlib.Path(written(cloud / name, DOCUMENTS)).read_bytes()
    (cloud / name).write_bytes(data[: 9 * len(data) // 10])
    before = contents(cloud)
    with pytest.raises(UserError, match=f"gs://bucket/{name}") as error:
        run(f"gs://bucket/{name}", vocab, "gs://bucket/store")
    assert "\n" not in str(error.value) and contents(cloud) == before


@pytest.fixture
def files(cloud):
    for name in ("d/a.txt", "d/b.txt", "d/e/c.txt", "d/.hidden", "f/a.txt"):
        (cloud / name).parent.mkdir(parents=True, exist_ok=True)
        (cloud / name).write_text(f"This is {name}.\n")
    (cloud / "empty").mkdir()


@pytest.mark.parametrize(
    "input, names",
    [
        ("d", "d/a.txt d/b.txt d/e/c.txt"),
        ("d/", "d/a.txt d/b.txt d/e/c.txt"),
        ("d/*.txt", "d/a.txt d/b.txt"),
        ("*/a.txt", "d/a.txt f/a.txt"),
        ("?/[bc].txt", "d/b.txt"),
        ("d/b.txt,gs://bucket/d/*.txt,gs://bucket/d", "d/b.txt d/a.txt d/e/c.txt"),
    ],
)
def test_globs_and_directories_of_a_bucket(files, input, names):
    assert [source.name for source in find_sources(f"gs://bucket/{input}")] == [
        f"gs://bucket/{name}" for name in names.split()
    ]


@pytest.mark.parametrize(
    "input, message",
    [
        ("d/*.nope", r"no file matches the glob '\*.nope' in the directory gs://bucket/d, which holds .hidden, a.txt"),
        ("none/*.txt", "no file matches .* in the directory gs://bucket/none, which does not exist"),
        ("none.txt", "no such file; the directory gs://bucket holds d, empty, f"),
        ("empty", "no file in or below the directory gs://bucket/empty"),
        ("d/**", r"\*\* is not supported; name a directory"),
    ],
)
def test_what_matches_nothing_in_a_bucket_is_one_line(files, input, message):
    with pytest.raises(UserError, match=message) as error:
        find_sources(f"gs://bucket/{input}")
    assert "\n" not in str(error.value) and f"gs://bucket/{input}" in str(error.value)


def test_a_glob_of_a_bucket_makes_the_store_of_its_files(tmp_path, cloud, vocab):
    for number, name in enumerate(("a.txt", "b.txt")):
        (cloud / name).write_text("\n\n".join("\n".join(lines) for lines in random_documents(20, number)) + "\n")
    run("gs://bucket/*.txt", vocab, tmp_path / "store")
    run(f"{cloud}/*.txt", vocab, tmp_path / "here")
    assert shards(tmp_path / "store") == shards(tmp_path / "here")
