"""Batches of chunks that share values: the same as of chunks that do not, in every form."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cache.chunk_files import window_of_files, write_chunk
from tests.unit.cache.samples import arrays_of, entry, same_fields, specs
from tests.unit.cache.test_runs import repeated

from stoker import Deduplicated, Spec
from stoker.cache.tables import take_rows
from stoker.loader.buffers import BufferPool
from stoker.loader.gather import Part, assemble

chunks = st.lists(st.lists(st.integers(1, 5), max_size=8), min_size=1, max_size=3)


@st.composite
def shared_specs(draw):
    spec = draw(specs())
    names = [item.name for item in spec]
    return Spec(tuple(replace(e, deduplicated_by=draw(st.sampled_from([None, names[0], names[-1]]))) for e in spec))


def window_of(folder, spec, contents, *, is_mapped):
    paths = [folder / f"{i}" for i in range(len(contents))]
    for path, (num, arrays) in zip(paths, contents, strict=True):
        write_chunk(path, arrays, spec, num_samples=num)
    return window_of_files(paths, spec, is_mapped=is_mapped)


def chunk_of(spec, lengths, seed):
    arrays = repeated(arrays_of(spec, len(lengths), seed), lengths)
    own = arrays_of(spec, sum(lengths), seed + 100)
    return sum(lengths), {e.name: own[e.name] if e.deduplicated_by is None else arrays[e.name] for e in spec}


def expanded(field):
    return take_rows(field.values, np.asarray(field.index, np.int64)) if isinstance(field, Deduplicated) else field


@given(
    spec=shared_specs(),
    windows=st.lists(chunks, min_size=1, max_size=2),
    seed=st.integers(0, 9),
    is_mapped=st.booleans(),
    is_grouped=st.booleans(),
)
def test_shared_batches_are_the_unshared_ones(tmp_path_factory, spec, windows, seed, is_mapped, is_grouped):
    rng = np.random.default_rng(seed)
    plain = Spec(tuple(replace(item, deduplicated_by=None) for item in spec))
    shared_parts, plain_parts = [], []
    for number, lengths in enumerate(windows):
        contents = [chunk_of(spec, runs, seed + 10 * number + i) for i, runs in enumerate(lengths)]
        rows = [(slot, row) for slot, (num, _) in enumerate(contents) for row in range(num)]
        order = np.arange(len(rows)) if is_grouped else rng.integers(0, max(len(rows), 1), len(rows) and 30)
        slot, row = (np.array([rows[i][k] for i in order], dtype=np.int64) for k in (0, 1))
        for one, parts in ((spec, shared_parts), (plain, plain_parts)):
            window = window_of(tmp_path_factory.mktemp("window"), one, contents, is_mapped=is_mapped)
            parts.append(Part.at(window, slot, row))
    expected = assemble(plain, plain_parts, BufferPool()).views()
    assert same_fields(assemble(spec, shared_parts, BufferPool()).views(), expected)
    for once in ("always", "where it pays"):
        whole = assemble(spec, shared_parts, BufferPool(), once=once)
        views = whole.views()
        assert list(views) == list(expected)
        assert same_fields({name: expanded(field) for name, field in views.items()}, expected)
        for item in spec:
            field = views[item.name]
            if once == "always":
                assert isinstance(field, Deduplicated) == (item.deduplicated_by is not None)
        for one in whole.shared:
            assert len(np.unique(one.index)) == one.rows.num_samples, "each row once, and none that no sample has"
    fixed = assemble(spec.only(spec.fixed), shared_parts, BufferPool()).views()
    assert same_fields(fixed, {item.name: expected[item.name] for item in spec.fixed})
    for item in spec.ragged:
        alone = assemble(spec.only((item,)), shared_parts, BufferPool()).views()
        assert same_fields(alone, {item.name: expected[item.name]})
    for part in (*shared_parts, *plain_parts):
        part.window.close()


@given(
    spec=shared_specs(),
    windows=st.lists(chunks, min_size=1, max_size=2),
    borders=st.lists(st.integers(0, 60), max_size=4),
    seed=st.integers(0, 9),
    is_grouped=st.booleans(),
    once=st.sampled_from(["always", "where it pays"]),
)
def test_shared_batches_cut_from_one_are_those_assembled_one_by_one(
    tmp_path_factory, spec, windows, borders, seed, is_grouped, once
):
    rng = np.random.default_rng(seed)
    parts = []
    for number, lengths in enumerate(windows):
        contents = [chunk_of(spec, runs, seed + 10 * number + i) for i, runs in enumerate(lengths)]
        window = window_of(tmp_path_factory.mktemp("window"), spec, contents, is_mapped=False)
        sizes = [num for num, _ in contents]
        slot = np.repeat(np.arange(len(sizes)), sizes)
        row = np.concatenate([np.arange(num) for num in sizes])
        if not is_grouped:
            order = rng.integers(0, max(sum(sizes), 1), sum(sizes) and 30)
            slot, row = slot[order], row[order]
        parts.append(Part.at(window, slot, row))
    num = sum(len(part.row) for part in parts)
    ends = [*sorted(min(border, num) for border in borders), num]
    sizes = np.diff(ends, prepend=0).tolist()
    whole = assemble(spec, parts, BufferPool(), once=once, sizes=sizes)
    begin = 0
    for end, batch in zip(ends, whole.cut(sizes), strict=True):
        alone = assemble(spec, between(parts, begin, end), BufferPool(), once="always").views()
        views = batch.views()
        for item in spec:
            name = item.name
            if isinstance(views[name], Deduplicated):
                assert views[name].index.tolist() == alone[name].index.tolist(), "what the batch has alone"
                assert same_fields({name: views[name].values}, {name: alone[name].values})
            else:
                assert item.deduplicated_by is None or once != "always"
                assert same_fields({name: views[name]}, {name: expanded(alone[name])})
        begin = end
    for part in parts:
        part.window.close()


def between(parts, begin, end):
    """The samples from one to another of all parts one behind the other, part by part."""
    found, first = [], 0
    for part in parts:
        low, high = (min(max(border - first, 0), len(part.row)) for border in (begin, end))
        if low < high:
            found.append(Part.at(part.window, part.slot[low:high], part.row[low:high]))
        first += len(part.row)
    return found


@pytest.mark.parametrize("once", ["never", "always"])
def test_a_batch_without_samples_has_all_fields(once):
    entries = (entry("f0", "int64"), entry("f1", "float32", num_levels=1))
    spec = Spec(tuple(replace(item, deduplicated_by="f0") for item in entries))
    assert list(assemble(spec, [], BufferPool(), once=once).views()) == ["f0", "f1"]
