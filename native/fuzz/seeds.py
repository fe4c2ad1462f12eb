"""Write what the fuzz targets begin with to a folder: footers, headers, pages and levels of files of pyarrow's."""

from __future__ import annotations

import io
import itertools
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUM_ROWS = 100
CODECS = ["NONE", "SNAPPY", "ZSTD", "LZ4"]
WIDTHS = [1, 2, 4, 8, 3, 12, 16, 100]
FLAT, BIT, WORDS, LIST = range(4)
IS_LARGE, AS_WIDE, ANY_SIZE, AT_ONCE, SPLIT = 0, 2, 0, 29, 120


def columns() -> dict[str, tuple[pa.Array, tuple[int, int, int, int]]]:
    """Return arrays, and the bytes by which the target `pages` chooses each one's column."""
    random = np.random.default_rng(0)
    some = random.random(NUM_ROWS) < 0.3
    ints = random.integers(0, 9, NUM_ROWS)
    words = np.array(["", "a", "word", "a word of more than sixteen bytes"])[ints % 4]
    lists = [list(range(i % 5)) for i in range(NUM_ROWS)]
    four, eight, wide = WIDTHS.index(4), WIDTHS.index(8), WIDTHS.index(12)
    return {
        "int64": (pa.array(ints), (eight, FLAT, 1, 0)),
        "int64_null": (pa.array(ints, mask=some), (eight, FLAT, 1, 0)),
        "float": (pa.array(random.random(NUM_ROWS), pa.float32()), (four, FLAT, 1, 0)),
        "fixed": (pa.array([bytes([i]) * 12 for i in ints], pa.binary(12)), (wide, FLAT, 1, 0)),
        "bool": (pa.array(ints > 3, mask=some), (0, BIT, 1, 0)),
        "string": (pa.array(words, mask=some), (four, WORDS, 1, 0)),
        "list": (pa.array(lists, pa.list_(pa.int64())), (eight, LIST, 3, 2)),
    }


def written(array: pa.Array, **options: object) -> tuple[bytes, pq.FileMetaData]:
    """Return a file of one column, and its footer."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": array}), sink, data_page_size=100, write_batch_size=20, **options)
    return sink.getvalue(), pq.read_metadata(sink)


def write_seeds(folder: Path) -> None:
    """Write a folder of seeds for each target."""

    def save(target: str, name: str, *parts: bytes) -> None:
        (folder / target).mkdir(parents=True, exist_ok=True)
        (folder / target / name).write_bytes(b"".join(parts))

    for (name, (array, choice)), version, codec, has_words in itertools.product(
        columns().items(), ["1.0", "2.0"], CODECS, [False, True]
    ):
        encodings = {} if has_words or name not in ("int64", "float") else {"x": "BYTE_STREAM_SPLIT"}
        content, footer = written(
            array,
            data_page_version=version,
            compression=codec,
            use_dictionary=has_words and name != "bool",
            column_encoding=encodings or None,
        )
        chunk = footer.row_group(0).column(0)
        begin = chunk.dictionary_page_offset or chunk.data_page_offset
        pages = content[begin : begin + chunk.total_compressed_size]
        seed = f"{name}-{version}-{codec}-{'words' if has_words else 'plain'}"
        width, kind, full, empty = choice
        full = full - 1 if kind == LIST else full
        choices = [width, kind, full, empty, IS_LARGE, AS_WIDE, ANY_SIZE, CODECS.index(codec), NUM_ROWS, AT_ONCE, SPLIT]
        save("pages", seed, bytes(choices), pages)
        if codec == "NONE":
            size = int.from_bytes(content[-8:-4], "little")
            save("page_headers", seed, pages)
            save("thrift", seed, bytes([12]), content[-8 - size : -8])
            save("thrift", f"{seed}-page", bytes([12]), pages)
            save("footer", seed, bytes([1, 1]), content[-8 - size : -8])

    # Levels as the pages have them: runs of ones, packed bits, and both.
    save("levels", "flat", bytes([63, 0, 0, 0, 0, 0]), b"\x40\x01\x09" + bytes(range(32, 36)) * 8)
    save("levels", "lists", bytes([7, 0, 2, 2, 2, 20]), b"\x03\xaa", b"\x10\x02")
    for name, text in {"words": b"a word and a word and " * 40, "numbers": bytes(range(256)) * 3, "none": b""}.items():
        size = len(text)
        save("snappy", name, bytes([size % 256, size // 256]), pa.compress(text, "snappy", asbytes=True))
    words = [b"", b"a", b"word", b"a word of more than sixteen bytes"] * 5
    plain = b"".join(len(word).to_bytes(4, "little") + word for word in words)
    save("strings", "words", bytes([len(words), 190, 0]), plain)

    event = (
        b'{"ph": "X", "cat": "kernel", "name": "a \\"name\\"", "pid": 0, "tid": "7", "ts": 12.345678, "dur": 3e2,'
        b' "args": {"correlation": 4, "bytes": "1,024", "shapes": [[2, 3], []]}}'
    )
    begin = b'\x1f{"a": [{}], "traceEvents": ['
    save("traces", "events", begin, event, b", ", event, b",\n", event, b'], "b": 1}')
    save("traces", "damage", b"\x1f[", event[:-9], b'NaN, "ph": "i"}, {"ts": , "name": "x" y"}, ', event)


if __name__ == "__main__":
    write_seeds(Path(sys.argv[1]))
