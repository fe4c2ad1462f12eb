"""One column in two types: what `pyarrow.dataset` reads as one schema is read alike, or refused when it is opened."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from decimal import Decimal

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.integration.real_files.oracle import delivered, expected, flat_columns

from stoker import Dataset, Field, FieldError, Loader

DAY = dt.date(2024, 2, 29)
FAR, NEAR = dt.datetime(9999, 12, 31, 23), dt.datetime(2024, 2, 29, 13, 5)

# Type -> values that other types hold too, and values at its ends.
TYPES: dict[pa.DataType, tuple[list, list]] = {
    pa.bool_(): ([True, False], []),
    **{
        kind: ([0, 1, 100], [2 ** (kind.bit_width - 1) - 1, -(2 ** (kind.bit_width - 1))])
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    **{kind: ([0, 1, 100], [2**kind.bit_width - 1]) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    pa.float16(): ([0.5, 2.0], [65504.0]),
    pa.float32(): ([0.5, 2.0], [1e38]),
    pa.float64(): ([0.5, 2.0], [1e300]),
    pa.decimal128(5, 2): ([Decimal("1.25"), Decimal(1)], [Decimal("999.99")]),
    pa.decimal128(9, 0): ([Decimal(12), Decimal(1)], [Decimal(-999999999)]),
    pa.decimal128(38, 10): ([Decimal("1.5"), Decimal(1)], [Decimal("9" * 28 + ".0000000001")]),
    pa.decimal256(60, 5): ([Decimal("1.5"), Decimal(1)], [Decimal("9" * 50)]),
    pa.date32(): ([DAY], [dt.date(9999, 12, 31)]),
    pa.date64(): ([DAY], [dt.date(9999, 12, 31)]),
    pa.time32("s"): ([dt.time(1, 2, 3)], [dt.time(23, 59, 59)]),
    pa.time32("ms"): ([dt.time(1, 2, 3)], [dt.time(23, 59, 59)]),
    pa.time64("us"): ([dt.time(1, 2, 3)], [dt.time(23, 59, 59, 999999)]),
    pa.time64("ns"): ([dt.time(1, 2, 3)], [dt.time(23, 59, 59, 999999)]),
    pa.timestamp("s"): ([NEAR], [FAR]),
    pa.timestamp("ms"): ([NEAR], [FAR]),
    pa.timestamp("us"): ([NEAR], [FAR]),
    pa.timestamp("ns"): ([NEAR], []),
    pa.timestamp("us", "UTC"): ([NEAR], [FAR]),
    pa.timestamp("ns", "UTC"): ([NEAR], []),
    pa.timestamp("us", "Europe/Berlin"): ([NEAR], []),
    pa.duration("s"): ([dt.timedelta(3)], [dt.timedelta(10**8)]),
    pa.duration("us"): ([dt.timedelta(3)], [dt.timedelta(10**8)]),
    pa.duration("ns"): ([dt.timedelta(3)], []),
    pa.string(): (["DE", "FR"], [""]),
    pa.large_string(): (["DE", "FR"], [""]),
    pa.string_view(): (["DE", "a word that is longer than twelve"], [""]),
    pa.binary(): ([b"DE", b"FR"], [b"\xff"]),
    pa.large_binary(): ([b"DE", b"FR"], [b"\xff"]),
    pa.binary_view(): ([b"DE", b"FR"], [b"\xff"]),
    pa.binary(2): ([b"DE", b"FR"], [b"\xff\xff"]),
    pa.binary(16): ([bytes(16)], []),
    pa.uuid(): ([uuid.UUID(int=7)], []),
    pa.dictionary(pa.int8(), pa.string()): (["DE", "FR"], [""]),
    pa.dictionary(pa.int32(), pa.int64()): ([1, 100], [2**63 - 1]),
    pa.list_(pa.int32()): ([[1, 2], []], [[2**31 - 1]]),
    pa.large_list(pa.int32()): ([[1, 2], []], []),
    pa.list_view(pa.int64()): ([[1, 2], []], [[2**63 - 1]]),
    pa.list_(pa.int32(), 2): ([[1, 2]], []),
    pa.list_(pa.float64()): ([[0.5], []], []),
    pa.list_(pa.float64(), 3): ([[0.5, 1, 2]], []),
    pa.list_(pa.string()): ([["DE"], []], []),
    pa.list_(pa.string_view()): ([["DE"], []], []),
    pa.list_(pa.list_(pa.int16())): ([[[1], []]], []),
    pa.struct([("a", pa.int32())]): ([{"a": 1}], [{"a": -(2**31)}]),
    pa.struct([("a", pa.float64()), ("b", pa.string())]): ([{"a": 1.5, "b": "DE"}], []),
    pa.map_(pa.string(), pa.int32()): ([[("a", 1)]], []),
    pa.null(): ([None], []),
}
# So few pairs that they are tried each time.
FEW = [
    pa.int8(),
    pa.int64(),
    pa.uint64(),
    pa.float32(),
    pa.decimal128(5, 2),
    pa.timestamp("s"),
    pa.timestamp("ns"),
    pa.string(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.list_(pa.int32()),
    pa.null(),
]
NESTS = {
    "column": (lambda kind: kind, lambda value: value),
    "member": (lambda kind: pa.struct([("y", kind)]), lambda value: {"y": value}),
    "list": (lambda kind: pa.list_(kind), lambda value: [value, value]),
}


# What errors say of types that no tensor holds, however many files have them.
NO_TENSOR = ("array of numbers", "map has", "is null: nothing", "several columns", "levels", "structs", "two levels")


def array_of(values, kind):
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array([value.bytes for value in values], kind.storage_type))
    return pa.array(values, kind)


def theirs(paths):
    """Return what `pyarrow.dataset` reads of files; None where it cannot."""
    try:
        unified = pa.unify_schemas([pq.read_schema(path) for path in paths], promote_options="permissive")
        return ds.dataset([str(path) for path in paths], schema=unified).to_table()
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return None


def check_pair(folder, one, other, *, nest, statistics=True):
    """Check that two files of one column each are read as pyarrow reads them, or refused when they are opened.

    Returns:
        Whether they were read.
    """
    wrap, enclose = NESTS[nest]
    was_read = False
    for ends in (False, True):
        paths, first = [folder / "a.parquet", folder / "b.parquet"], 0
        for path, kind in zip(paths, (one, other), strict=True):
            values = TYPES[kind][0] + (TYPES[kind][1] if ends else [])
            if nest == "column":
                column = array_of(values, kind)
            elif isinstance(kind, pa.BaseExtensionType) or (nest == "list" and pa.types.is_null(kind)):
                return False  # pyarrow makes no such arrays of objects; nulls inside of lists need a fill
            else:
                column = pa.array([enclose(value) for value in values], wrap(kind))
            ids = pa.array(range(first, first + len(column)))
            first += len(column)
            table = {"x": column, "id": ids} if path.name == "a.parquet" else {"id": ids, "x": column}
            try:
                pq.write_table(pa.table(table), path, write_statistics=statistics, row_group_size=1)
            except pa.ArrowNotImplementedError:  # views inside of lists and structs
                return False
        truth = theirs(paths)
        was_read |= compare(folder, truth, what=f"{one} and {other}, {nest}, {'ends' if ends else 'common'}")
    return was_read


def as_type(column, kind):
    """Return a column in another type; pyarrow's cast of list views reads beyond their ends."""
    if "view" in str(column.type):
        return pa.chunked_array([pa.array(column.to_pylist(), kind)])
    return column.cast(kind)


def compare(folder, truth, *, what):
    try:
        catalogue = Dataset(folder).open()
        schema = catalogue.schema
        names = [name for name in schema.names if name != "id"]
        loader = Loader(Dataset(folder, fields={name: Field(mask=True) for name in names}), batch_size=3)
    except FieldError as error:
        if not all(repr(name) in str(error) for name in error.columns):
            raise AssertionError(f"{what}: the error does not name {error.columns}: {error}") from error
        if truth is not None and not any(word in str(error) for word in NO_TENSOR):
            raise AssertionError(f"{what}: pyarrow reads {truth.schema.field('x').type}: {error}") from error
        return False
    with loader:
        batches = list(loader)
    ids = [number for batch in batches for number in batch["id"].tolist()]
    assert sorted(ids) == list(range(loader.num_samples)), what
    if names in (
        ["x"],
        ["x.y"],
    ):  # pyarrow takes decimals of too few digits beside integers, and too short floats beside decimals
        kind = schema.field(names[0]).type if names == ["x"] else pa.struct([("y", schema.field("x.y").type)])
        tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
        truth = pa.concat_tables([pa.table({"x": as_type(table["x"], kind), "id": table["id"]}) for table in tables])
    if truth is None or "view" in str(truth.schema):  # we read more than pyarrow, or than it can sort
        return True
    columns = flat_columns(truth.sort_by("id"))
    for name in names:
        kind, values = schema.field(name).type, columns[name][1]
        got = [value for batch in batches for value in delivered(kind, batch[name])]
        want = expected(kind, [values[i] for i in ids], fill=None)
        assert got == want, f"{what}: {kind}: {got} is not {want}"
        masks = [bool(value) for batch in batches for value in batch[f"{name}_mask"]]
        assert masks == [values[i] is not None for i in ids], what
    return True


def check_pairs(folder, pairs, *, nest="column", statistics=True):
    """Check all pairs, and return how many were read."""
    num_read, faults = 0, []
    for one, other in pairs:
        try:
            num_read += check_pair(folder, one, other, nest=nest, statistics=statistics)
        except Exception as error:
            faults.append(f"{one} and {other}: {type(error).__name__}: {error}")
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults)
    return num_read


def test_pairs_of_types_are_read_as_one_or_refused_at_opening(tmp_path):
    assert check_pairs(tmp_path, itertools.combinations(FEW, 2)) > 15


@pytest.mark.slow
@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.timeout(1800)
def test_all_pairs_of_types_are_read_as_one_or_refused_at_opening(tmp_path, nest, statistics):
    assert check_pairs(tmp_path, itertools.permutations(TYPES, 2), nest=nest, statistics=statistics) > 100


@pytest.fixture
def quarrel(tmp_path):
    """Two files: `x` is twice in one, `y` has two types, and so has a member of `u`."""
    column = pa.array([1, 2])
    one = pa.Table.from_arrays([column, column, column, pa.array([{"a": 1, "b": 5}] * 2)], names=["x", "x", "y", "u"])
    two = pa.table({"x": column, "y": ["a", "b"], "u": [{"a": "word", "b": 6, "c": 7}] * 2})
    for name, table in (("a", one), ("b", two)):
        pq.write_table(table.append_column("id", column), tmp_path / f"{name}.parquet")
    return tmp_path


def test_columns_that_contradict_each_other_matter_where_they_are_asked_for(quarrel):
    for chosen in (["x"], ["y"], ["u"], ["u.a"], None):
        with pytest.raises(FieldError, match="columns=") as caught:
            Dataset(quarrel, columns=chosen).open()
        assert str(quarrel) in str(caught.value)
    dataset = Dataset(quarrel, columns=["id"], filters=[("id", ">", 0)])
    for wrong in ("x", "y"):
        with pytest.raises((FieldError, ValueError), match=repr(wrong)):
            Dataset(quarrel, columns=["id"], filters=[(wrong, ">", 0)]).open()
        with pytest.raises(FieldError, match=f"'{wrong}'"):
            Loader(dataset, batch_size=2, group_by=wrong)
    with Loader(Dataset(quarrel, columns=["id", "u.b", "u.c"], fields={"u.c": Field(fill=0)}), batch_size=4) as loader:
        (batch,) = loader
    rows = sorted(zip(*(batch[name].tolist() for name in ("id", "u.b", "u.c")), strict=True))
    assert rows == [(1, 5, 0), (1, 6, 7), (2, 5, 0), (2, 6, 7)]


@pytest.mark.parametrize("is_struct_first", [True, False])
def test_a_struct_in_one_file_that_is_a_number_in_another_is_refused_where_it_is_read(tmp_path, is_struct_first):
    structs, numbers = pa.array([{"a": 1, "b": {"c": 2}}]), pa.array([7])
    nested = pa.array([{"a": 1, "b": 2}])
    for k, column in enumerate([structs, numbers] if is_struct_first else [numbers, structs]):
        pq.write_table(pa.table({"id": [k], "x": column}), tmp_path / f"{k}.parquet")
    for chosen in (["id", "x.a"] if is_struct_first else ["id", "x"], None):
        with pytest.raises(FieldError, match=r"column 'x' is .*columns="):
            Dataset(tmp_path, columns=chosen).open()
    with Loader(Dataset(tmp_path, columns=["id"]), batch_size=2, shuffle=False) as loader:
        assert [batch["id"].tolist() for batch in loader] == [[0, 1]]
    pq.write_table(pa.table({"id": [0], "x": nested}), tmp_path / f"{int(is_struct_first)}.parquet")
    member = "x.b.c" if is_struct_first else "x.b"
    with pytest.raises(FieldError, match=r"column 'x' is .*columns="):
        Dataset(tmp_path, columns=["id", member]).open()
    with Loader(Dataset(tmp_path, columns=["id", "x.a"]), batch_size=2) as loader:
        assert [batch["x.a"].tolist() for batch in loader] == [[1, 1]]


def test_columns_with_dots_in_their_names_stand_for_themselves(tmp_path):
    pq.write_table(pa.table({"x": [1], "x.a": [2]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"x": ["word"], "x.a": [3]}), tmp_path / "1.parquet")
    with Loader(Dataset(tmp_path, columns=["x.a"]), batch_size=2, shuffle=False) as loader:
        assert [batch["x.a"].tolist() for batch in loader] == [[2, 3]]
