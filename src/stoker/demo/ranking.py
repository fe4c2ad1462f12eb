"""The demo's ranking data: candidates of search queries, with a label that a model can learn.

A query has 10 to 30 candidate rows (20 on average). What belongs to the query is the same on all of them:

    query_id, country, context_0..5, query_embedding[64],
    clicked_items[0..50], viewed_categories[0..50], four of the ids      one value a query
    dense_00..39, the other ids, label                                   one value a candidate

Values look like those of a real log: ids are Zipf-like with 24 to 20 million distinct values, counts are skewed, ratios
have three decimals, some of the dense columns are mostly zero. The label is drawn from a probability that depends on
some of all these (`_log_odds`), so that a model has something to find and cannot be perfect.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker.fields.offsets import Int64

NUM_DENSE = 40
NUM_CONTEXT = 6
EMBEDDING_SIZE = 64
MAX_HISTORY = 50
NUM_CATEGORIES = 1_000
NUM_ITEMS = 2_000_000

# From a handful (hour, device) to tens of millions (user). Written as int32 up to 50,000, as int64 beyond.
ID_CARDINALITIES = (
    *(24, 40, 60, 100, 200, 500, 1_000, 2_000, 5_000, 10_000),
    *(20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000),
)
_MAX_INT32_CARDINALITY = 50_000
_QUERY_IDS = frozenset({0, 1, 13, 19})  # hour, device, region, user: the same for all candidates of a query
_LABEL_ID = 5

COUNTRIES = (
    *("US", "IN", "BR", "DE", "GB", "JP", "FR", "MX", "ID", "IT"),
    *("ES", "CA", "TR", "KR", "PL", "NL", "AU", "SE", "AR", "ZA"),
)

# A prime, so that multiplying by it modulo any of the cardinalities mixes ranks without making two of them one.
_SCRAMBLE = 2_654_435_761

Floats = npt.NDArray[np.float32]


def column_names() -> list[str]:
    """Return the columns in the order they have in the files."""
    return [
        *("query_id", "country"),
        *(f"context_{i}" for i in range(NUM_CONTEXT)),
        *("query_embedding", "clicked_items", "viewed_categories"),
        *(f"dense_{i:02}" for i in range(NUM_DENSE)),
        *(f"id_{i:02}" for i in range(len(ID_CARDINALITIES))),
        "label",
    ]


def ranking_table(*, num_rows: int, seed: int, part: int) -> pa.Table:
    """Return part `part` of the data set: the same table for the same arguments (and NumPy's version).

    Parts of one seed have queries of their own; the last query of each is cut off at its number of rows.
    """
    rng = np.random.Generator(np.random.SFC64([seed, part]))
    lengths = rng.integers(10, 31, size=num_rows // 10 + 1)
    num_queries = int(np.searchsorted(np.cumsum(lengths), num_rows)) + 1
    query_of_row = np.repeat(np.arange(num_queries), lengths[:num_queries])[:num_rows]

    countries = np.minimum(_zipf(rng, num_queries, len(COUNTRIES)), len(COUNTRIES) - 1)
    context = rng.standard_normal((NUM_CONTEXT, num_queries), dtype=np.float32)
    embedding = rng.standard_normal((num_queries, EMBEDDING_SIZE), dtype=np.float32)
    items = _histories(rng, num_queries, NUM_ITEMS)
    categories = _histories(rng, num_queries, NUM_CATEGORIES)
    dense = [_dense(rng, i, num_rows) for i in range(NUM_DENSE)]
    ids = [_ids(rng, i, num_queries, query_of_row) for i in range(len(ID_CARDINALITIES))]

    query_odds = _query_log_odds(countries, context, embedding, categories, seed=seed)
    odds = query_odds[query_of_row] + _log_odds(dense, ids[_LABEL_ID], context[0][query_of_row], seed=seed)
    label = rng.random(num_rows, dtype=np.float32) < 1 / (1 + np.exp(-odds))

    rows = pa.array(query_of_row)
    # Numbers of queries do not start anew in each part: a query is one query of the whole data set.
    query_ids = query_of_row + (part << 32)
    flat = pa.array(embedding[query_of_row].reshape(-1))
    columns: list[Any] = [
        query_ids,
        pa.array(COUNTRIES).take(pa.array(countries[query_of_row])),
        *(values[query_of_row] for values in context),
        pa.FixedSizeListArray.from_arrays(flat, EMBEDDING_SIZE),
        *(items.take(rows), categories.take(rows)),
        *dense,
        *ids,
        label.astype(np.uint8),
    ]
    return pa.table(dict(zip(column_names(), columns, strict=True)))


def _zipf(rng: np.random.Generator, size: int, cardinality: int) -> Int64:
    """Return ranks in [0, cardinality), rank r with a frequency of about 1 / (r + 1)."""
    ranks: Int64 = np.exp(rng.random(size) * np.log(cardinality + 1)).astype(np.int64) - 1
    return ranks


def _scrambled(rng: np.random.Generator, size: int, cardinality: int) -> Int64:
    """Return such ranks as ids: frequent ones lie anywhere, as hashes or serial numbers of a real log do."""
    return (_zipf(rng, size, cardinality) * _SCRAMBLE) % cardinality


def _ids(rng: np.random.Generator, i: int, num_queries: int, query_of_row: Int64) -> npt.NDArray[Any]:
    cardinality = ID_CARDINALITIES[i]
    if i in _QUERY_IDS:
        ids = _scrambled(rng, num_queries, cardinality)[query_of_row]
    else:
        ids = _scrambled(rng, len(query_of_row), cardinality)
    return ids.astype(np.int32) if cardinality <= _MAX_INT32_CARDINALITY else ids


def _histories(rng: np.random.Generator, num_queries: int, cardinality: int) -> pa.ListArray:
    lengths = rng.integers(0, MAX_HISTORY + 1, size=num_queries)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = _scrambled(rng, int(offsets[-1]), cardinality)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def _dense(rng: np.random.Generator, i: int, num_rows: int) -> Floats:
    """Return one dense column: of each four a score, a count, a ratio, and a score again or something mostly zero."""
    if i % 4 == 1:
        return np.log1p(_zipf(rng, num_rows, 10_000)).astype(np.float32)
    if i % 4 == 2:
        return rng.integers(0, 1001, size=num_rows, dtype=np.int32).astype(np.float32) / np.float32(1000)
    values = rng.standard_normal(num_rows, dtype=np.float32)
    if i % 8 == 7:
        values[rng.integers(0, 8, size=num_rows, dtype=np.uint8) != 0] = 0
    return values


def _query_log_odds(
    countries: Int64, context: Floats, embedding: Floats, categories: pa.ListArray, *, seed: int
) -> npt.NDArray[np.float64]:
    """Return what the query alone says about its labels. Shape [num_queries]."""
    rng = np.random.default_rng([seed, 1 << 40])
    by_country = rng.normal(0, 0.5, len(COUNTRIES))
    direction = rng.normal(0, 0.8 / np.sqrt(EMBEDDING_SIZE), EMBEDDING_SIZE)
    taste = rng.normal(0, 3.0, NUM_CATEGORIES)
    offsets = np.asarray(categories.offsets)
    totals = np.concatenate([[0.0], np.cumsum(taste[np.asarray(categories.values)])])
    mean_taste = (totals[offsets[1:]] - totals[offsets[:-1]]) / np.maximum(np.diff(offsets), 1)
    odds: npt.NDArray[np.float64] = (
        -1.0 + by_country[countries] + embedding @ direction + mean_taste + 0.4 * context[1].astype(np.float64)
    )
    return odds


def _log_odds(dense: list[Floats], ids: Int64, context: Floats, *, seed: int) -> npt.NDArray[np.float64]:
    """Return what a candidate adds to its query's. Shape [num_rows]."""
    rng = np.random.default_rng([seed, 1 << 41])
    by_id = rng.normal(0, 0.8, ID_CARDINALITIES[_LABEL_ID])
    odds: npt.NDArray[np.float64] = (
        by_id[ids] + 0.9 * dense[0] - 0.25 * dense[1] + 1.2 * (dense[2] - 0.5) + 0.5 * dense[4] * context
    )
    return odds
