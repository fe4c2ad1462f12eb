"""Fields kept narrower than they are delivered: what does widening them do to a warm epoch?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measure import Answer, compare, rows_rate
from benchmarks.warm_gather import BATCH_SIZE, RAGGED
from stoker import Dataset, Field, Loader
from stoker.demo.data import DemoData
from stoker.demo.ranking import column_names
from stoker.fields.compact import Scaled

# Every id of the data fits 32 bits; dense features lie between -10 and 10.
FORMS: dict[str, Any] = {"float16": "float16", "bfloat16": "bfloat16", "8 bits of a range": Scaled(-10, 10)}


def run(data: DemoData, folder: Path, *, num_rounds: int) -> Answer:
    """A warm epoch with fields kept narrower and widened on the host, against plain ones, a form at a time."""
    answers = {}
    with _loader(data, folder, None) as plain:
        for name, form in FORMS.items():
            with _loader(data, folder, form) as narrow:
                answers[name] = compare(
                    f"warm epoch, {name} and ids of 32 bits widened on the host / plain fields",
                    ours=lambda loader=narrow: rows_rate(loader),  # type: ignore[misc]
                    ceiling=lambda: rows_rate(plain),
                    unit="million rows/s",
                    num_rounds=num_rounds,
                    promise=None,
                )
    first = next(iter(answers.values()))
    return Answer(
        question=first.question,
        ours=first.ours,
        ceiling=first.ceiling,
        unit=first.unit,
        ratios=first.ratios,
        promise=None,
        remarks=tuple(
            f"{name}: {answer.ratio:.2f} of the plain rate ({min(answer.ratios):.2f} to {max(answer.ratios):.2f})"
            for name, answer in answers.items()
        ),
    )


def _loader(data: DemoData, folder: Path, form: Any) -> Loader:
    columns = [name for name in column_names() if name not in RAGGED]
    fields = {
        "dense": Field("float32", columns="dense_*", storage_dtype=form),
        "ids": Field("int64", columns="id_*", storage_dtype=None if form is None else "int32"),
    }
    dataset = Dataset([str(path) for path in data.paths], columns=columns, fields=fields)
    return Loader(dataset, batch_size=BATCH_SIZE, shuffle=True, cache=folder / "cache", num_threads=2)
