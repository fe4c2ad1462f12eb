"""The page as a whole: the verdict first, then what it rests on, then how to see it again."""

from __future__ import annotations

import importlib.util
from importlib.resources import files
from pathlib import Path

from stoker.doctor.report import sections
from stoker.doctor.report.markup import words
from stoker.doctor.results import DoctorResult


def check_report(path: Path) -> None:
    """Make sure that a page can be made and written, before anything is measured for it.

    Raises:
        ValueError: The library that draws is not here, or `path` is a folder.
    """
    # A ValueError, as for everything that was asked for and cannot be: a command line says it without a traceback.
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("a page with charts needs matplotlib, and it is not here: pip install 'stoker[report]'")
    path = path.expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file for the page, such as {path / 'doctor.html'}")


def write_report(result: DoctorResult, path: Path) -> None:
    """Write the page, whole or not at all.

    Args:
        result: What was found.
        path: The file; its folder is made where there is none.

    Raises:
        ValueError: As `check_report` says.
    """
    path = path.expanduser()
    check_report(path)
    html = report_html(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(html, encoding="utf-8")
    aside.replace(path)


def report_html(result: DoctorResult) -> str:
    """Return the page: one HTML document without script and without any request.

    Args:
        result: What was found; whatever is optional in it may be missing.
    """
    style = (files("stoker.doctor.report") / "report.css").read_text(encoding="utf-8")
    body = "\n\n".join(
        section
        for section in (
            sections.head(result),
            sections.step(result),
            sections.stages(result),
            sections.timeline(result),
            sections.fixes(result),
            sections.verified(result),
            sections.where_to_keep(result),
            sections.paths(result),
            sections.ceilings(result),
            sections.batch_sizes(result),
            sections.gpus(result),
            sections.money(result),
            sections.data(result),
            sections.environment(result),
            sections.again(result),
        )
        if section
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>Stoker doctor: {words(sections.headline(result))}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
