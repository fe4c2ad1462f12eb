"""Names of files, folders and partitions: whatever the system allows, and what paths and URLs mean."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import Dataset, Field, FieldError, Loader, SourceError, SourceMissingError
from stoker.cli import main

ODD = [
    "run[3]", "run[!3]", "a*b", "what?", "100%", "a%20b", "a b", " x ", "-rf", "{a,b}", "a#b", "back\\slash",
    "new\nline", "tab\t", "~", "~nobody", "a=b", "a:b", "é日本", "e\u0301", "'\"", "$HOME", "&;|", "x" * 200,
    "s3:", "[", "]", "**", os.fsdecode(b"bytes\xff\xfe"),
]  # fmt: skip


def write(path, *values):
    """Write a file with one column v."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("wb") as file:
        pq.write_table(pa.table({"v": pa.array(values, pa.int64())}), file)


def rows(source, **options):
    """Read a source through a loader; its values in order."""
    with Loader(Dataset(source, **options), batch_size=4) as loader:
        return [int(v) for batch in loader for v in batch["v"]]


@pytest.mark.parametrize("name", ODD)
def test_a_path_and_its_url_and_its_text_are_that_file_and_that_folder(tmp_path, monkeypatch, name):
    write(f"{tmp_path}/{name}/{name}.parquet", 1)
    for decoy in ("run3", "run1", "aXb", "whatX", "decoy", "a b c", "["):
        if decoy != name:
            write(f"{tmp_path}/{decoy}/{decoy}.parquet", 99)
    monkeypatch.chdir(tmp_path)
    folder, file = tmp_path / name, tmp_path / name / f"{name}.parquet"
    sources = [folder, file, folder.as_uri(), file.as_uri(), str(folder), str(file), f"{folder}/", name]
    sources += [Path(name), Path(name) / f"{name}.parquet", f"file://localhost{quote(os.fsencode(folder))}"]
    assert [rows(source) for source in sources] == [[1]] * len(sources)
    assert rows(f"{name}/*.parquet") == [1]


def test_what_does_not_exist_as_text_is_a_pattern(tmp_path):
    write(f"{tmp_path}/run3/a.parquet", 3)
    write(f"{tmp_path}/run4/a.parquet", 4)
    assert rows(f"{tmp_path}/run[3-9]/a.parquet") == [3, 4]
    assert rows(f"file://{tmp_path}/run[3-9]/a.parquet") == [3, 4]
    with pytest.raises(SourceMissingError, match=r"run\[3\]/a\.parquet: check the name.*Path is no pattern"):
        rows(tmp_path / "run[3]" / "a.parquet")
    with pytest.raises(SourceMissingError, match="no file matches"):
        rows((tmp_path / "run[3]" / "a.parquet").as_uri())
    with pytest.raises(SourceMissingError, match="no file matches"):
        rows(f"{tmp_path}/run[9-0]/a.parquet")
    with pytest.raises(SourceMissingError, match="give a URL as text"):
        rows(Path("s3://bucket/a.parquet"))


def test_a_folder_that_is_empty_is_no_pattern_either(tmp_path):
    write(f"{tmp_path}/run3/a.parquet", 3)
    (tmp_path / "run[3]").mkdir()
    for source in (f"{tmp_path}/run[3]", f"{tmp_path}/run[3]/*.parquet", f"{tmp_path}/run[3]/"):
        with pytest.raises(SourceMissingError, match=r"run\[3\]"):
            rows(source)


def test_up_from_a_link_leads_where_the_system_goes(tmp_path):
    write(f"{tmp_path}/far/data/a.parquet", 1)
    write(f"{tmp_path}/far/b.parquet", 2)
    write(f"{tmp_path}/b.parquet", 99)
    (tmp_path / "near").symlink_to(tmp_path / "far" / "data")
    assert rows(f"{tmp_path}/near/../b.parquet") == [2]
    assert rows(tmp_path / "near" / ".." / "b.parquet") == [2]


def test_a_tree_of_links_is_what_its_paths_say_in_their_order(tmp_path):
    root = tmp_path / "root"
    write(f"{root}/m/a.parquet", 1)
    write(f"{root}/m/b.parquet", 2)
    write(f"{tmp_path}/out/c.parquet", 3)
    (root / "z").symlink_to("m")  # one folder by three paths
    (root / "a").symlink_to(root / "m")
    (root / "k=7").symlink_to(tmp_path / "out")
    (root / "m" / "up").symlink_to(root)  # would never end
    (root / "m" / "c.parquet").symlink_to("a.parquet")
    (root / "self").symlink_to(".")
    (root / "_gone").symlink_to("nowhere")
    catalogue = Dataset(root).open()
    names = [os.path.relpath(file.url, root) for file in catalogue.files]
    own = ["a.parquet", "b.parquet", "c.parquet"]
    assert names == [
        *(f"a/{name}" for name in own), "k=7/c.parquet", *(f"m/{name}" for name in own), *(f"z/{name}" for name in own)
    ]  # fmt: skip
    assert rows(root, fields={"k": Field(fill=0)}) == [1, 2, 1, 3, 1, 2, 1, 1, 2, 1]


@pytest.mark.parametrize("target", ["nowhere", "circle.parquet"])
def test_a_link_that_leads_nowhere_is_an_error_that_names_it(tmp_path, target):
    write(f"{tmp_path}/a.parquet", 1)
    (tmp_path / "circle.parquet").symlink_to(target)
    for source in (tmp_path, f"{tmp_path}/*.parquet", tmp_path / "circle.parquet"):
        with pytest.raises(SourceError, match=r"circle\.parquet"):
            rows(source)
    assert rows(f"{tmp_path}/a*.parquet") == [1]


def test_partition_values_are_what_writers_escaped(tmp_path):
    values = ["", "a=b", "a/b", "é", "100%", "[x]", "a b", "null", "%41", "'", "\n", os.fsdecode(b"\xff"), None]
    for i, value in enumerate(values):
        text = "__HIVE_DEFAULT_PARTITION__" if value is None else quote(os.fsencode(value), safe="")
        write(f"{tmp_path}/texts/my key={text}/a.parquet", i)
    catalogue = Dataset(tmp_path / "texts").open()
    got = {}
    for i in range(len(catalogue)):
        for _, table in catalogue.read(i):
            got.update(zip(table["v"].to_pylist(), table["my key"].to_pylist(), strict=True))
    assert got == {i: None if value is None else os.fsencode(value) for i, value in enumerate(values)}


def test_digits_of_other_scripts_are_text(tmp_path):
    write(f"{tmp_path}/k=٣/a.parquet", 1)
    assert str(Dataset(tmp_path).open().schema.field("k").type) == "string"


def test_one_file_in_two_values_of_one_partition_is_an_error(tmp_path):
    write(f"{tmp_path}/k=1/k=2/a.parquet", 1)
    with pytest.raises(SourceError, match=r"two partitions at once, k=1 and k=2"):
        rows(tmp_path)


@pytest.mark.parametrize(
    "cache", ["s3://bucket/cache", "gs://b", "hf://datasets/x", Path("s3://bucket/cache"), "file://host/x"]
)
def test_a_cache_that_is_no_local_folder_is_refused_when_the_loader_is_made(tmp_path, monkeypatch, cache):
    monkeypatch.chdir(tmp_path)
    write(f"{tmp_path}/a.parquet", 1)
    with pytest.raises(ValueError, match="cache"):
        Loader(Dataset("a.parquet"), batch_size=1, cache=cache)
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_a_cache_may_be_a_file_url(tmp_path):
    write(f"{tmp_path}/a.parquet", 1)
    folder = tmp_path / "my [cache] é"
    with Loader(Dataset(tmp_path), batch_size=1, cache=folder.as_uri()) as loader:
        assert sum(1 for _ in loader) == 1
    assert (folder / "chunks").is_dir()


@pytest.mark.parametrize("source", ["a\0b", Path("a\0b"), "", "file://host/a", "\ud800", []])
def test_what_can_name_nothing_is_refused_at_construction(source):
    with pytest.raises(ValueError, match=r"source|file name|name of no file|machine"):
        Dataset(source)


@pytest.mark.parametrize(
    "locale",
    [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
    ids=["C, which Python takes for UTF-8", "ASCII"],
)
def test_every_locale_gives_the_same_order_the_same_chunks_and_messages_that_print(tmp_path, locale):
    for i, name in enumerate(["z", "é", "日本", "\U00010000", "\uffff", os.fsdecode(b"\xff"), os.fsdecode(b"a\xe9")]):
        write(f"{tmp_path}/data/{name}/k=é/a.parquet", i)
    write(f"{tmp_path}/bad/é{os.fsdecode(bytes([255]))}.parquet", 1)
    code = """if True:
        import json, os, sys, stoker
        root = sys.argv[1]
        with stoker.Loader(stoker.Dataset(root + "/data"), batch_size=64, cache=root + "/cache") as loader:
            (batch,) = loader
            files = [str(origin) for origin in loader.explain(0)][0]
            print(loader, loader.explain(0))
            built = loader.stats().num_built
        os.truncate(root + "/bad/" + os.listdir(root + "/bad")[0], 10)
        try:
            stoker.Dataset(root + "/bad").open()
        except stoker.SourceError as error:
            print(error)
        print()
        print(json.dumps([batch["v"].tolist(), built]))
    """

    def run():
        done = subprocess.run(
            [sys.executable, "-c", code, os.fsencode(tmp_path)],
            env={**os.environ, **locale},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return json.loads(done.stdout.splitlines()[-1])

    names = ["z", "é", "日本", "\U00010000", "\uffff", os.fsdecode(b"\xff"), os.fsdecode(b"a\xe9")]
    expected = sorted(range(len(names)), key=lambda i: os.fsencode(names[i]))
    # The cache was filled in this locale; the other one finds every chunk.
    assert rows(tmp_path / "data") == expected
    with Loader(Dataset(tmp_path / "data"), batch_size=64, cache=tmp_path / "cache") as loader:
        list(loader)
    assert run() == [expected, 0]


@pytest.mark.parametrize("name", ["a.b", "", "a[1]", "*", "new\nline", "é", "'"])
def test_what_a_message_says_of_an_odd_column_works_when_it_is_done(tmp_path, name):
    table = pa.table({name: pa.array([None, 1, 2], pa.int64()), "v": [0, 1, 2]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(FieldError, match=re.escape(f"fields={{{name!r}: Field(fill=...)}}")):
        rows(tmp_path)
    assert rows(tmp_path, fields={name: Field(fill=7)}) == [0, 1, 2]
    assert rows(tmp_path, filters=[(name, ">", 1)]) == [2]


def test_columns_with_commas_are_named_on_the_command_line_in_quotes(tmp_path, capsys):
    pq.write_table(pa.table({"a,b": [1], "c": [2], " d ": [3]}), tmp_path / "a.parquet")
    assert main(["inspect", str(tmp_path), "--columns", 'c, "a,b"," d "', "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [field["name"] for field in told["spec"]] == ["c", "a,b", " d "]


def test_a_cache_and_a_state_work_with_names_that_are_no_text(tmp_path):
    odd = os.fsdecode(b"\xff\n[1]")
    for i in range(3):
        write(f"{tmp_path}/{odd}/{i}{odd}.parquet", *range(10 * i, 10 * i + 10))
    options = {"batch_size": 4, "shuffle": True, "cache": tmp_path / f"cache{odd}"}
    with Loader(Dataset(tmp_path / odd), **options) as loader:
        steps = iter(loader)
        first = [next(steps)["v"].tolist() for _ in range(3)]
        state = json.loads(json.dumps(loader.state_dict()))
        assert any(odd in origin.url for origin in loader.explain(0))
        del steps
    with Loader(Dataset(tmp_path / odd, columns=["v"]), **options) as loader:  # of the kept footers
        loader.load_state_dict(state)
        rest = [batch["v"].tolist() for batch in loader]
    assert sorted(v for batch in first + rest for v in batch) == list(range(30))


@pytest.mark.parametrize(("command", "encoding"), [("inspect", "ascii"), ("explain", "utf-8")])
def test_commands_print_names_that_are_no_text(tmp_path, command, encoding):
    odd = os.fsdecode(b"\xff\xc3\xa9\xe9")
    write(f"{tmp_path}/{odd}/a.parquet", 1)
    options = ["--batch-size", "1", "--step", "0"] if command == "explain" else []
    done = subprocess.run(
        [sys.executable, "-m", "stoker.cli", command, os.fsencode(tmp_path / odd), *options],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert os.fsencode(tmp_path) in done.stdout.replace(b"\n", b"")


def test_a_name_that_is_too_long_is_an_error_that_names_it(tmp_path):
    for source in (tmp_path / ("x" * 300), f"{tmp_path}/{'x' * 300}", f"{tmp_path}/{'[x]' * 100}"):
        with pytest.raises(SourceError, match=r"xx|\[x\]"):
            rows(source)
