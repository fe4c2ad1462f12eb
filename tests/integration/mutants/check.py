"""Load files that lie: the right error, or the values that pyarrow reads. In a process of its own; see `child.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.integration.mutants.files import NUM_ROWS, Sound, make
from tests.integration.mutants.ways import damaged, mutants
from tests.integration.real_files.oracle import delivered, expected, fill_for

import stoker


def check(task: dict[str, Any]) -> dict[str, Any]:
    """Load one file, and say what came of it: "refused", "delivered", or "failed" with the reason.

    Args:
        task: With "sound", "number" of the mutant or "seed" of its damage, "folder" to write to, and whether it is read
            in "parts".
    """
    sound = Sound(*task["sound"])
    mutant = damaged(sound, task["seed"]) if "seed" in task else mutants(sound)[task["number"]]
    content = mutant.content()
    path = Path(task["folder"]) / "lies.parquet"
    path.write_bytes(content)
    name = json.dumps([*task["sound"], task["parts"], mutant.name])
    try:
        found = _loaded(path, content, in_parts=task["parts"])
    except stoker.FieldError as error:
        return {"kind": "refused", "text": f"{name}: {error}"}
    except stoker.SourceError as error:
        said = str(error)
        if error.url != str(path) or str(path) not in said:
            return {"kind": "failed", "text": f"{name}: does not name the file: {error!r}"}
        if mutant.in_page and not ("column x" in said and "row group" in said):
            return {"kind": "failed", "text": f"{name}: does not name column and row group: {error!r}"}
        return {"kind": "refused", "text": f"{name}: {said}"}
    try:
        truth = _values(pq.ParquetFile(path, page_checksum_verification=True).read(use_threads=False))
    except Exception as error:
        # pyarrow looks at more than values need: what nobody needs may lie. And of two releases of zstd, the system's
        # and Arrow's own, one may tell damage that the other does not.
        is_zstd = sound.codec == "zstd" and "ZSTD" in str(error)
        if is_zstd or found == _values(pq.read_table(pa.BufferReader(make(sound)))):
            return {"kind": "kept", "text": f"{name}: pyarrow says {error!r}"}
        return {"kind": "failed", "text": f"{name}: delivered what pyarrow refuses: {error!r}"}
    if found != truth:
        return {"kind": "failed", "text": f"{name}: delivered other values than pyarrow: {found} {truth}"}
    return {"kind": "delivered", "text": name}


def _loaded(path: Path, content: bytes, *, in_parts: bool) -> dict[str, list[Any]]:
    kinds = {"x": pq.read_schema(path).field("x").type} if _has_x(path) else {}
    fields = {"x": stoker.Field(fill=fill_for(kinds["x"]), mask=False)} if kinds else {}
    dataset = stoker.Dataset(path, fields=fields, chunk_size=max(1, len(content) // 9) if in_parts else "32MiB")
    found: dict[str, list[Any]] = {}
    with stoker.Loader(dataset, batch_size=NUM_ROWS * 40, num_threads=1) as loader:
        for batch in loader:
            for name, array in batch.items():
                found.setdefault(name, []).extend(delivered(kinds[name], array))
    return found


def _has_x(path: Path) -> bool:
    try:
        return bool(pq.read_schema(path).names == ["x"])
    except Exception:
        return False


def _as_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return strings as binary: whether bytes are text is not looked at."""
    if pa.types.is_list(column.type) and pa.types.is_string(column.type.value_type):
        return column.cast(pa.list_(pa.binary()))
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


def _values(table: pa.Table) -> dict[str, list[Any]]:
    found = {}
    for field in table.schema:
        values = [
            one.value if pa.types.is_temporal(field.type) else one.as_py() for one in _as_bytes(table[field.name])
        ]
        found[field.name] = expected(field.type, values, fill=fill_for(field.type))
    return found
