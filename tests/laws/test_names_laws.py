"""Whatever names Linux and Parquet allow: order and rows are those of the paths, columns those of the file."""

# Names are bytes here, which Path has not.
# ruff: noqa: PTH112, PTH114, PTH116, PTH118, PTH208

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from urllib.parse import quote_from_bytes, unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.strategies import examples

from stoker import Dataset, FieldError, Loader, SourceError
from stoker.testing import MemoryStorage

# Any byte but NUL and "/"; often those that mean something to globs, URLs, partitions, JSON and terminals.
_BYTES = st.one_of(
    st.sampled_from([bytes([b]) for b in b"*?[]!%#&=+~. -{}\\'\"$:;,@^\n\t\x1b\x7f\xff\xc3aA0"]),
    st.sampled_from(["é".encode(), "日".encode(), "\U00010000".encode(), "\uffff".encode(), b"%41", b"%zz", b"**"]),
    st.integers(1, 255).filter(lambda b: b != 47).map(lambda b: bytes([b])),
)
_NAMES = st.lists(_BYTES, min_size=1, max_size=6).map(b"".join).filter(lambda name: name not in (b".", b".."))
_KEYS = st.sampled_from([b"k", b"my key", "é".encode(), b"a.b", b"K", b"%6B"])
_VALUES = st.one_of(
    st.sampled_from([b"", b"7", b"07", b"-1", b"__HIVE_DEFAULT_PARTITION__", b"9" * 19, b"a=b", "٣".encode()]),
    _NAMES,
    _NAMES.map(lambda name: quote_from_bytes(name, safe="").encode()),
)
_FOLDERS = st.one_of(_NAMES, st.tuples(_KEYS, _VALUES).map(lambda pair: pair[0] + b"=" + pair[1]))
_FILES = st.tuples(_NAMES, st.sampled_from([b".parquet", b".PQ", b".parq", b".pqt", b".csv", b""])).map(b"".join)
_STEP = st.tuples(st.sampled_from(["file"] * 4 + ["folder"] * 3 + ["link"] * 2), st.integers(0, 99), _FILES, _FOLDERS)
_TREES = st.lists(_STEP, min_size=1, max_size=14)


def plant(root, steps):
    """Make a tree below `root`: each step a file, a folder or a link, in one of the folders there are."""
    folders, made, num = [root], [root], 0
    for kind, number, file, folder in steps:
        here = folders[number % len(folders)]
        path = os.path.join(here, file if kind == "file" else folder)
        if os.path.lexists(path):
            continue
        if kind == "file":
            with Path(os.fsdecode(path)).open("wb") as sink:
                pq.write_table(pa.table({"v": pa.array([2 * num, 2 * num + 1], pa.int64())}), sink)
            num += 1
            made.append(path)
        elif kind == "folder":
            Path(os.fsdecode(path)).mkdir()
            folders.append(path)
            made.append(path)
        else:
            Path(os.fsdecode(path)).symlink_to(os.fsdecode(made[number % len(made)]))


def paths_below(folder, above=()):
    """Every file below a folder by its path, links followed, but for those that lead back to a folder on the path."""
    identity = os.stat(folder)[1:3]
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not os.path.isdir(path):
            yield path
        elif not (os.path.islink(path) and os.stat(path)[1:3] in (*above, identity)):
            yield from paths_below(path, (*above, identity))


def is_read(name):
    """Whether a file of this name below a folder is one of its rows' files."""
    is_hidden = any(part.startswith(b".") or (part.startswith(b"_") and b"=" not in part) for part in name.split(b"/"))
    return not is_hidden and name.lower().endswith((b".parquet", b".parq", b".pq", b".pqt"))


def partition_of(name):
    """The partitions that a path says, key -> bytes or None; None for a path that contradicts itself."""
    found = {}
    for part in name.split(b"/")[:-1]:
        key, equals, value = part.partition(b"=")
        if key and equals:
            text = None if value == b"__HIVE_DEFAULT_PARTITION__" else unquote_to_bytes(value)
            if found.setdefault(unquote_to_bytes(key), text) != text:
                return None
    return found


def is_utf8(text):
    return text.decode("utf-8", "ignore").encode() == text


def expected_values(partitions, key):
    """The values of a partition column, as Python has them."""
    values = [partition.get(key) for partition in partitions]
    known = [value for value in values if value is not None]
    if known and all(re.fullmatch(rb"-?[0-9]{1,19}", v) and -(2**63) <= int(v) < 2**63 for v in known):
        return [None if value is None else int(value) for value in values]
    if all(map(is_utf8, known)):
        return [None if value is None else value.decode() for value in values]
    return values


@given(_TREES)
@examples(12)
@example(
    [("folder", 0, b"", b"k=%ff"), ("folder", 0, b"", b"k=%FE"), ("file", 1, b"a.pq", b""), ("file", 2, b"a.pq", b"")]
)
@example([("folder", 0, b"", b"a"), ("file", 1, b"a.pq", b""), ("link", 0, b"", b"a0"), ("link", 1, b"", b"-")])
def test_order_and_rows_of_a_tree_are_those_of_its_paths(steps):
    with tempfile.TemporaryDirectory(prefix="names [x]") as folder:
        root = os.path.join(os.fsencode(folder), b"ro*t")
        Path(os.fsdecode(root)).mkdir()
        plant(root, steps)
        every = sorted(os.path.relpath(path, root) for path in paths_below(root))
        names = [name for name in every if is_read(name)]
        path = Path(os.fsdecode(root))
        partitions = [partition_of(name) for name in names]
        keys = list(dict.fromkeys(key for partition in partitions for key in partition or ()))
        if not names or None in partitions or not all(map(is_utf8, keys)):
            with pytest.raises(SourceError):
                Dataset(path).open()
            return
        contents = [(path / os.fsdecode(name)).read_bytes() for name in names]
        rows = [pq.read_table(pa.BufferReader(content))["v"].to_pylist() for content in contents]
        sources = [path, str(path), path.as_uri()]
        # A glob takes files of any ending; where something has the pattern for its name, the text names that.
        if len(every) == len(names) and not os.path.lexists(os.path.join(root, b"**")):
            sources.append(f"{path}/**")
        for source in sources:
            with Loader(Dataset(source, columns=["v"]), batch_size=1_000) as loader:
                (batch,) = loader
                origins = [os.fsencode(file.url) for file in Dataset(source).open().files]
            assert batch["v"].tolist() == [row for some in rows for row in some]
            assert origins == [os.path.join(root, name) for name in names]
        # A store has no links, but the same names have the same order and the same partitions.
        storage = MemoryStorage({f"t/{os.fsdecode(name)}": c for name, c in zip(names, contents, strict=True)})
        local, stored = Dataset(path).open(), Dataset("t", storage=storage).open()
        assert [os.fsencode(file.url) for file in stored.files] == [b"t/" + name for name in names]
        for catalogue in (local, stored):
            assert catalogue.schema.names == ["v", *(key.decode() for key in keys if key != b"v")]
            tables = [table for i in range(len(catalogue)) for _, table in catalogue.read(i)]
            for key in keys:
                found = [table[key.decode()][0].as_py() for table in tables]
                assert found == expected_values(partitions, key)


_COLUMN = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.sampled_from(
        [
            "",
            ".",
            "a",
            "a.b",
            "A",
            "a[1]",
            "a*",
            "*",
            "'",
            '"',
            "\n",
            "\0",
            "é",
            "e\u0301",
            "list.element",
            "a.list.element",
        ]
    ),
)
_KINDS = st.sampled_from(["number", "list", "text", "struct"])
_COLUMNS = st.lists(st.tuples(_COLUMN, _KINDS, _COLUMN), min_size=1, max_size=6, unique_by=lambda column: column[0])


@given(_COLUMNS)
@examples(10)
@example([("", "number", ""), ("x", "list", "")])
@example([("a.b", "number", ""), ("a", "struct", "c")])
@example([("", "struct", ""), (".", "number", "")])
@example([("", "number", ""), ("a", "list", ""), ("a.list.element", "number", "")])
@example([("a.b", "number", ""), ("x", "struct", "c"), ("a", "struct", "b")])
@example([("", "number", ""), (".", "list", "")])
def test_columns_of_any_name_come_as_they_are(columns):
    table, expected = {}, {}
    for i, (name, kind, member) in enumerate(columns):
        numbers = [10 * i + k for k in range(4)]
        flat = f"{name}.{member}" if kind == "struct" else name
        table[name] = {
            "number": lambda n=numbers: pa.array(n, pa.int64()),
            "list": lambda n=numbers: pa.array([[k, k + 1] for k in n], pa.list_(pa.int64())),
            "text": lambda n=numbers: pa.array([f"w{k}" for k in n]),
            "struct": lambda n=numbers, m=member: pa.array([{m: k} for k in n], pa.struct([(m, pa.int64())])),
        }[kind]()
        if flat in expected:
            expected = None
            break
        expected[flat] = (kind, numbers)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.parquet")
        if expected is None:
            assume(len(table) == len(columns))
            pq.write_table(pa.table(table), path)
            with pytest.raises(FieldError, match="two columns named"):
                Dataset(path).open()
            return
        pq.write_table(pa.table(table), path)
        chosen = list(expected)[::-1]
        numeric = [name for name, (kind, _) in expected.items() if kind in ("number", "struct")]
        filters = [(numeric[0], ">=", 0)] if numeric else None
        fields = {numeric[-1]: "float64"} if numeric else None
        for options in ({}, {"columns": chosen}, {"columns": chosen[:1]}, {"filters": filters, "fields": fields}):
            for _ in range(2):  # made, then found in the cache
                with Loader(Dataset(path, **options), batch_size=4, cache=Path(folder, "cache")) as loader:
                    (batch,) = loader
                assert list(batch) == list(options.get("columns", expected))
                for name, values in batch.items():
                    kind, numbers = expected[name]
                    if kind == "list":
                        assert [np.asarray(row).tolist() for row in values] == [[k, k + 1] for k in numbers]
                    elif kind == "text":
                        assert [bytes(np.asarray(row)).decode() for row in values] == [f"w{k}" for k in numbers]
                    else:
                        assert values.tolist() == numbers
