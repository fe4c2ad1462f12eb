"""docs/reference/real-files.md: its tables, as they are written and as they should be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from tests.integration.real_files.child import REPOSITORY, run_tasks

PAGE = REPOSITORY / "docs" / "reference" / "real-files.md"
SHARED = REPOSITORY.parent / "shared" / "data"

# Heading of a table -> folder below `SHARED`, and which of its files or folders the table lists.
TABLES = {
    "parquet-testing/data": ("parquet-testing/data", ("**/*.parquet", "**/*.parquet.encrypted")),
    "parquet-testing/bad_data": ("parquet-testing/bad_data", ("*.parquet",)),
    "petastorm": ("petastorm", ("*/",)),
}

Table = Mapping[str, str]


def sources_of(table: str) -> dict[str, Path]:
    """Name in the table -> path of every file or folder that the table must list."""
    folder, patterns = TABLES[table]
    found = {path for pattern in patterns for path in (SHARED / folder).glob(pattern)}
    return {str(path.relative_to(SHARED / folder)): path for path in sorted(found)}


def answers_now(table: str) -> dict[str, str]:
    """Load everything a table lists, compare it with pyarrow, and return what to write behind each name."""
    sources = sources_of(table)
    answers = run_tasks([{"kind": "answer", "path": str(path)} for path in sources.values()])
    return {
        name: answer["text"] if answer["kind"] == "answer" else f"{answer['kind'].upper()}: {answer['text']}"
        for name, answer in zip(sources, answers, strict=True)
    }


def answers_written(text: str, table: str) -> dict[str, str]:
    """Return the table as the page has it."""
    return dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", _section(text, table), re.MULTILINE))


def version_written(text: str) -> str:
    """Return the version of pyarrow that the page was written with."""
    found = re.search(r"pyarrow (\d+\.\d+)", text)
    assert found is not None
    return found[1]


def version_now() -> str:
    """Return this pyarrow's version, without what says nothing about its words."""
    return ".".join(pa.__version__.split(".")[:2])


def with_answers(text: str, tables: Mapping[str, Table]) -> str:
    """Return the page with other tables in it."""
    for table, answers in tables.items():
        rows = "\n".join(f"| `{name}` | {answer} |" for name, answer in answers.items())
        delivered = sum(answer.startswith("delivered") for answer in answers.values())
        partly = sum(bool(re.search(r"refused: .* rows?, \d+ fields?$", answer)) for answer in answers.values())
        counts = (
            f"{len(answers)} in all: {delivered} delivered as they are, {partly} with a fill or without some columns, "
            f"{len(answers) - delivered - partly} refused."
        )
        old = _section(text, table)
        text = text.replace(old, re.sub(r"\d+ in all:.*\n(\n\|.*)*(\n\|.*)*", "", old).rstrip("\n") + "\n")
        new = _section(text, table)
        text = text.replace(new, f"{new.rstrip()}\n\n{counts}\n\n| file | answer |\n|---|---|\n{rows}\n\n")
    return re.sub(r"pyarrow \d+\.\d+", f"pyarrow {version_now()}", text, count=1).rstrip("\n") + "\n"


def _section(text: str, table: str) -> str:
    found = re.search(rf"^## {re.escape(table)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{PAGE.name} has no section {table}"
    return found[1]
