"""HTML from data that nobody vouches for: every text that comes from outside passes through here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

# What neither HTML nor XML allows in a text: controls, lone surrogates, noncharacters. Directions that turn text around
# are among them: a file name must not rewrite the line that it stands in.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
# A line must not break between the hyphens of an option that is to be typed.
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_BLANKS = re.compile(r"[\t\n\r\f\v]+")


def clean(text: str) -> str:
    """Return a text on one line, what no page may hold replaced by U+FFFD."""
    return _FORBIDDEN.sub("\ufffd", _BLANKS.sub(" ", text))


def words(text: str) -> str:
    """Return a text as HTML."""
    return escape(clean(text))


def sentence(text: str) -> str:
    """Return a text as HTML, with a capital and a full stop."""
    text = clean(text).strip()
    if not text:
        return ""
    html = escape(text[0].upper() + text[1:] + ("" if text[-1] in ".!?:…" else "."))
    return _OPTION.sub(r'<span class="nowrap">\g<0></span>', html)


def paragraphs(texts: Iterable[str], *, kind: str) -> str:
    """Return each text as a paragraph of a class."""
    return "\n".join(f'<p class="{kind}">{sentence(text)}</p>' for text in texts if text.strip())


def definitions(pairs: Mapping[str, str]) -> str:
    """Return pairs as a list of definitions; what is empty is left out."""
    rows = "\n".join(f"<dt>{words(name)}</dt><dd>{words(text)}</dd>" for name, text in pairs.items() if text)
    return f"<dl>\n{rows}\n</dl>" if rows else ""


def html_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    about: str,
    marked: Sequence[int] = (),
    worded: Sequence[int] = (),
) -> str:
    """Return a table that scrolls by itself where it is too wide.

    Args:
        head: Names of the columns, plain text.
        rows: Cells, plain text, as many as there are names.
        about: What the table shows, for who cannot see it.
        marked: Measurements of the rows that stand out.
        worded: Measurements of the columns that hold words, beside the first; the others hold figures.
    """
    heads = "".join(f'<th scope="col"{_side(i, worded)}>{words(name)}</th>' for i, name in enumerate(head))
    body = "\n".join(
        f"<tr{' class=is-marked' if number in marked else ''}>"
        + "".join(
            f'<th scope="row">{words(cell)}</th>' if i == 0 else f"<td{_side(i, worded)}>{words(cell)}</td>"
            for i, cell in enumerate(cells)
        )
        + "</tr>"
        for number, cells in enumerate(rows)
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{words(about)}">\n<table>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def _side(i: int, worded: Sequence[int]) -> str:
    return ' class="words"' if i == 0 or i in worded else ""
