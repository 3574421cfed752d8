"""Sources and stores in a bucket: every format is read from there, resumed, and refused in one line if it is cut."""

import pathlib

import pytest
from cloud_bucket import bucket
from letter_corpus import contents, random_documents, run
from written_sources import NAMES, written

from bert_jax.data.corpus.readers import find_sources
from bert_jax.data.corpus.text_blocks import read_blocks
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
