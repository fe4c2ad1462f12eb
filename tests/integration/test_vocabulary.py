"""A column's vocabulary: counted once, kept, extended, and used by a field."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker.cli import main
from stoker.testing import write_example


@pytest.fixture
def words(tmp_path):
    texts = ["b", "a", "b", None, "c", "b", "a", "ä"]
    table = pa.table(
        {"word": texts, "n": list(range(8)), "x": [0.5] * 8, "tags": [[t, t] if t else None for t in texts]}
    )
    pq.write_table(table, tmp_path / "words.parquet", row_group_size=3)
    return stoker.Dataset(tmp_path / "words.parquet")


def test_the_most_frequent_value_comes_first_and_equal_ones_in_their_own_order(words):
    assert list(stoker.Vocabulary.from_column(words, "word")) == ["b", "a", "c", "ä"]
    assert list(stoker.Vocabulary.from_column(words, "word", min_count=2)) == ["b", "a"]
    assert list(stoker.Vocabulary.from_column(words, "word", max_size=3)) == ["b", "a", "c"]
    assert list(stoker.Vocabulary.from_column(words, "tags", min_count=3)) == ["b", "a"]
    assert list(stoker.Vocabulary.from_column(words, "n"))[:3] == [0, 1, 2]


@pytest.mark.parametrize(
    "type_",
    [
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.large_string()),
        pa.list_(pa.list_(pa.string())),
    ],
    ids=str,
)
def test_strings_of_any_layout_are_counted(tmp_path, type_):
    values = ["x", "y", "x"]
    depth = str(type_).count("list<")
    for _ in range(depth):
        values = [[value] for value in values]
    pq.write_table(pa.table({"c": pa.array(values, type_)}), tmp_path / "a.parquet")
    assert list(stoker.Vocabulary.from_column(stoker.Dataset(tmp_path / "a.parquet"), "c")) == ["x", "y"]


def test_a_filter_counts_and_threads_change_nothing(tmp_path):
    folder = write_example(tmp_path / "data")
    filtered = stoker.Dataset(folder, filters=[("id", "<", 4)])
    assert sorted(stoker.Vocabulary.from_column(filtered, "word")) == ["", "w1", "w2w2"]
    found = [list(stoker.Vocabulary.from_column(stoker.Dataset(folder), "word", num_threads=n)) for n in (1, 4)]
    assert found[0] == found[1]


def test_a_saved_vocabulary_is_loaded_as_it_was_and_gives_each_value_its_place(tmp_path, words):
    vocabulary = stoker.Vocabulary.from_column(words, "word")
    vocabulary.save(tmp_path / "word.json")
    loaded = stoker.Vocabulary.load(tmp_path / "word.json")
    assert loaded == vocabulary
    field = stoker.Field("int32", vocabulary=loaded, fill=len(loaded))
    dataset = stoker.Dataset(tmp_path / "words.parquet", columns=["word"], fields={"word": field})
    with stoker.Loader(dataset, batch_size=8) as loader:
        codes = next(iter(loader))["word"]
    np.testing.assert_array_equal(codes, [0, 1, 0, 4, 2, 0, 1, 3])


def test_extending_keeps_every_code_and_counts_the_version(tmp_path, words):
    first = stoker.Vocabulary.from_column(words, "word", min_count=2)
    pq.write_table(pa.table({"word": ["z", "z", "a", "a", "a"]}), tmp_path / "more.parquet")
    second = stoker.Vocabulary.from_column(stoker.Dataset(tmp_path / "more.parquet"), "word", extend=first)
    assert list(second) == ["b", "a", "z"]
    assert (first.version, second.version) == (1, 2)
    with pytest.raises(ValueError, match="more than max_size=1"):
        stoker.Vocabulary.from_column(words, "word", extend=first, max_size=1)


def test_what_has_no_vocabulary_is_refused_by_name(words):
    with pytest.raises(stoker.FieldError, match="x is double: a vocabulary is of strings or integers"):
        stoker.Vocabulary.from_column(words, "x")
    with pytest.raises(stoker.FieldError, match="wrod"):
        stoker.Vocabulary.from_column(words, "wrod")
    with pytest.raises(ValueError, match="min_count must be at least 1, not 0"):
        stoker.Vocabulary.from_column(words, "word", min_count=0)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"stoker_vocabulary": 9, "column": "a"}'])
def test_a_file_that_holds_no_vocabulary_is_refused(tmp_path, content):
    path = tmp_path / "word.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"word\.json"):
        stoker.Vocabulary.load(path)


def test_the_command_counts_writes_and_extends(tmp_path, capsys):
    folder, path = write_example(tmp_path / "data"), tmp_path / "word.json"
    assert main(["vocabulary", str(folder), "--column", "word", "--output", str(path), "--max-size", "3"]) == 0
    assert "3 values of word" in capsys.readouterr().out
    command = ["vocabulary", str(folder), "--column", "word", "--output", str(path), "--extend", str(path), "--json"]
    assert main(command) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["num_values"] == len(stoker.Vocabulary.load(path)) == 3 + printed["num_new"]
    assert printed["version"] == 2


def test_a_folder_that_does_not_exist_is_named_before_anything_is_read(tmp_path, capsys):
    path = tmp_path / "missing" / "word.json"
    assert main(["vocabulary", "nowhere/", "--column", "word", "--output", str(path)]) == 2
    assert f"there is no folder {tmp_path / 'missing'}" in capsys.readouterr().err
