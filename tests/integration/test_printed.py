"""What is printed is for people: few lines, aligned, with units; and data that is not Parquet is told the way out."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import stoker
from stoker.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    for k in range(2):
        row = np.arange(100 * k, 100 * k + 100)
        pq.write_table(pa.table({"id": row, "x": row * 0.5}), folder / f"{k}.parquet", row_group_size=40)
    return folder


def test_printed_stats_are_aligned_and_have_units(folder):
    with stoker.Loader(stoker.Dataset(folder), batch_size=8) as loader:
        fresh = str(loader.stats())
        for _ in loader:
            pass
        stats = loader.stats()
    assert "LoaderStats(" in repr(stats)
    assert "none yet" in fresh or "built" in fresh
    lines = str(stats).splitlines()
    assert 6 <= len(lines) <= 10
    assert max(map(len, lines)) <= 120
    assert len({re.match(r"\S+( \S+)? {1,}", line).end() for line in lines}) == 1  # all values begin in one column
    text = str(stats)
    assert "epoch     1, step 0 of 25" in text
    assert "25 steps, 200 samples" in text
    assert re.search(r"waited [\d.,]+ (µs|ms|s) for batches \(\d+% of its time\)", text)
    assert "2 built" in text
    assert re.search(r"[\d.]+ kB read", text)
    assert str(stats.since(stats)).startswith("epoch")


def test_a_printed_explanation_names_runs_of_rows_and_no_more_than_people_read(folder):
    with stoker.Loader(stoker.Dataset(folder), batch_size=64, remainder="pad") as loader:
        told = str(loader.explain(1)).splitlines()
        assert told[0] == "epoch 0, step 1, rank 0 of 1: 64 samples of 2 files"
        assert re.fullmatch(r"  samples 0-15 +\S+/0\.parquet, row group 1, rows 24 to 39", told[1])
        assert re.fullmatch(r"  samples 16-35 +\S+/0\.parquet, row group 2, rows 0 to 19", told[2])
        assert re.fullmatch(r"  samples 36-63 +\S+/1\.parquet, row group 0, rows 0 to 27", told[3])
        assert len(told) == 4
        assert "56 of them padding" in str(loader.explain(3))
        assert "(padding)" in str(loader.explain(3))
    with stoker.Loader(stoker.Dataset(folder), batch_size=64, shuffle=True) as loader:
        told = str(loader.explain(1)).splitlines()
        assert len(told) == 12
        assert "more runs of rows" in told[-1]
        assert repr(loader.explain(1)).startswith("<Explanation of epoch 0, step 1")
    dataset = stoker.Dataset(folder, filters=[("x", ">", 10)])
    with stoker.Loader(dataset, batch_size=4) as loader:
        assert "rows 0 to 3 of those of chunk 0 that pass" in str(loader.explain(0))


def test_a_printed_spec_has_a_line_a_field(folder):
    with stoker.Loader(stoker.Dataset(folder), batch_size=8) as loader:
        assert str(loader.spec) == "id: int64\nx: float64"


def test_the_version_is_that_of_the_command(capsys):
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", stoker.__version__)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"stoker {stoker.__version__}"


# ---------------------------------------------------------------------- what is not Parquet

TABLE = pa.table({"id": [1, 2, 3], "x": [0.5, 1.5, 2.5]})
WRITERS = {
    "a.csv": lambda path: pa.csv.write_csv(TABLE, path),
    "a.jsonl": lambda path: path.write_text("".join(f'{{"id": {i}, "x": {i}.5}}\n' for i in (1, 2, 3))),
    "a.arrow": lambda path: pa.feather.write_feather(TABLE, path),
    "a.orc": lambda path: pa.orc.write_table(TABLE, path),
}


@pytest.mark.parametrize("of", ["folder", "file"])
@pytest.mark.parametrize("name", WRITERS)
def test_other_formats_are_told_a_line_that_converts_them(tmp_path, monkeypatch, name, of):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    WRITERS[name](tmp_path / "data" / name)
    with pytest.raises(stoker.SourceError, match="Stoker reads Parquet, not") as found:
        stoker.Loader(stoker.Dataset("data" if of == "folder" else f"data/{name}"), batch_size=2)
    (line,) = re.findall(r"`(.*)`", str(found.value))
    exec(compile(line, "way out", "exec"), {})
    with stoker.Loader(stoker.Dataset("parquet"), batch_size=8) as loader:
        assert next(iter(loader))["id"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("end", ["safetensors", "npy", "tfrecord", "tar"])
def test_formats_that_pyarrow_does_not_read_are_named(tmp_path, end):
    (tmp_path / f"a.{end}").write_bytes(b"x" * 100)
    with pytest.raises(stoker.SourceError, match=f"Stoker reads Parquet, not {end}: write it as Parquet once"):
        stoker.Loader(stoker.Dataset(tmp_path), batch_size=2)


def test_an_empty_folder_is_called_empty(tmp_path):
    with pytest.raises(stoker.SourceMissingError, match="is empty"):
        stoker.Loader(stoker.Dataset(tmp_path), batch_size=2)
    with pytest.raises(stoker.SourceMissingError, match=r"nothing is stored at .*nowhere: check the name"):
        stoker.Loader(stoker.Dataset(tmp_path / "nowhere"), batch_size=2)


# ---------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("inspect data --foo", "no option --foo.*`stoker inspect --help`"),
        ("inspect data --colums id", "no option --colums; did you mean '--columns'"),
        ("warm a b --cache c", "too much: 'b'.*`stoker warm --help`"),
        ("cache ls c --foo=3", "no option --foo=3.*`stoker cache ls --help`"),
        ("--foo", "no option --foo.*`stoker --help`|required"),
    ],
)
def test_unknown_options_point_to_the_help_of_their_command(arguments, words, capsys):
    assert main(arguments.split()) == 2
    told = capsys.readouterr().err
    assert re.search(words, told, re.DOTALL), told
