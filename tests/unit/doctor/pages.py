"""What a reader's browser makes of a page: its elements, its words, and what it would load."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "img", "hr", "input"}
_INLINE = {"span", "b"}


@dataclass
class Page(HTMLParser):
    """A page, parsed: tags open and close in pairs, or it is an error.

    Attributes:
        tags: Names of all elements.
        attributes: All attributes, as (element, name, value).
        ids: All ids.
        text: What is there to read, blanks as one.
        style: Its style sheets.
    """

    html: str
    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    style: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self._words: list[str] = []
        self.feed(self.html)
        self.close()
        assert not self._open, f"never closed: {self._open}"
        self.text = " ".join("".join(self._words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._words.append("" if tag in _INLINE else " ")
        self.tags.append(tag)
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1] == tag, f"</{tag}> closes <{self._open[-1]}>"
        self._open.pop()
        self._words.append("" if tag in _INLINE else " ")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.style += data
        else:
            self._words.append(data)

    def values(self, name: str) -> list[str]:
        """Return the values of all attributes of one name."""
        return [value for _, found, value in self.attributes if found == name]
