"""Load files in a process of its own, so that a crash, a hang or a huge allocation is seen as what it is.

parent   tasks ──────────────► child: little memory, a time limit for each task
         answers ◄──────────── one line a task; whatever has no line is what ended the process
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MEMORY_BYTES = 4 << 30
# Arrow's own peak for a file of at most a few hundred kilobytes.
HUGE_BYTES = 1 << 30
TIMEOUT_S = 30

REPOSITORY = Path(__file__).resolve().parents[3]


def run_tasks(tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one answer a task: {"kind": ...}, with "died" for a task that took its process along."""
    answers: list[dict[str, Any]] = []
    while len(answers) < len(tasks):
        left = tasks[len(answers) :]
        paths = [str(REPOSITORY / "src"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, "-m", "tests.integration.real_files.child"],
            input="\n".join(json.dumps(task) for task in left),
            capture_output=True,
            text=True,
            check=False,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
            timeout=60 + TIMEOUT_S * len(left),
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        answers += lines
        if len(lines) < len(left) and not (lines and lines[-1]["kind"] == "huge"):
            text = f"the process ended with {done.returncode}: {done.stderr[-2000:]}"
            answers.append({"kind": "died", "text": text})
    return answers


def _answer(task: dict[str, Any]) -> dict[str, Any]:
    from tests.integration.real_files.answers import Source, check_refusal, check_values, explore

    source = Source(path=Path(task["path"]))
    explored = explore(source)
    check_values(source, explored)
    check_refusal(source, explored)
    return {"kind": "answer", "text": str(explored.answer)}


def _probe(task: dict[str, Any]) -> dict[str, Any]:
    """Load a damaged file in one of several ways, and count its rows."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from tests.integration.real_files.answers import check_names_file

    import stoker

    path = task["path"]
    fields = {name: stoker.Field(fill=fill, mask=True) for name, fill in task["fills"].items()}
    filters = pc.field(task["filter"]).is_valid() if task["filter"] else None
    num_rows = 0
    try:
        dataset = stoker.Dataset(
            path, columns=task["columns"], fields=fields, filters=filters, chunk_size=task["chunk_size"]
        )
        with stoker.Loader(dataset, batch_size=5000, num_threads=1) as loader:
            for batch in loader:
                num_rows += len(next(iter(batch.values())))
            assert num_rows == loader.num_samples
    except stoker.SourceError as error:
        check_names_file(error, Path(path))
        return {"kind": "refused", "text": f"{type(error).__name__}: {error}"}
    except ValueError as error:  # the damage made other columns of it, which may be refused, or not be those asked for
        if not isinstance(error, stoker.FieldError) and not str(error).startswith("filters: "):
            raise
        return {"kind": "refused", "text": f"{type(error).__name__}: {error}"}
    if filters is None:
        metadata = pq.read_metadata(path)
        promised = sum(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        assert num_rows == promised, f"{num_rows} rows, the footer promises {promised}"
    return {"kind": "delivered", "text": str(num_rows)}


def _mutant(task: dict[str, Any]) -> dict[str, Any]:
    from tests.integration.mutants.check import check

    return check(task)


_WORK = {"answer": _answer, "probe": _probe, "mutant": _mutant}


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    import pyarrow as pa

    for line in sys.stdin:
        task = json.loads(line)
        faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)
        try:
            answer = _WORK[task["kind"]](task)
        except BaseException as error:
            text = "".join(traceback.format_exception(error))[-3000:]
            answer = {"kind": "failed", "text": text}
        faulthandler.cancel_dump_traceback_later()
        peak = pa.default_memory_pool().max_memory()
        if peak > HUGE_BYTES and task["kind"] != "answer":
            answer = {"kind": "huge", "text": f"{peak:,} bytes at once; {answer}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        if answer["kind"] == "huge":
            return


if __name__ == "__main__":
    _main()
