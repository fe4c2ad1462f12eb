"""Exit codes, the parser that answers wrong usage in one line, and the kinds of values that options take."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NoReturn

from stoker.arguments import near
from stoker.paint import make_console, print_error

# Exit codes, which scripts rely on; docs/reference/cli.md says what each means.
OK, FAILED, WRONG_USAGE, DAMAGED, INTERRUPTED = 0, 1, 2, 3, 130


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong, as every other error here; `fill` is called before it parses."""

    fill: Callable[[], object] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as ever; what is left over is said by the command that it was given to, not by `stoker`."""
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill()
        found, others = super().parse_known_args(args, namespace)
        if others:
            unknown = next((text for text in others if text.startswith("-")), None)
            if unknown is None:
                self.error(f"too much: {' '.join(map(repr, others))}")
            hint = near(unknown.partition("=")[0], self._option_string_actions)
            self.error(f"there is no option {unknown}" + (f"; {hint}" if hint else ""))
        return found, others

    def error(self, message: str) -> NoReturn:
        """Print the error and the way out, and leave with the code for wrong usage."""
        print_error(make_console(stderr=True), message, notes=[f"`{self.prog} --help` shows how"])
        raise SystemExit(WRONG_USAGE)


def _integer(text: str, least: int, what: str = "a whole number") -> int:
    try:
        number = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is less than {least}")
    return number


at_least_0, at_least_1 = partial(_integer, least=0), partial(_integer, least=1)


def part(text: str) -> tuple[int, int]:
    """Return which one of how many parts, from "0/8" to "7/8"."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no part: of eight parts, the first is 0/8 and the last 7/8")
    return int(match[1]), int(match[2])


def folder(text: str) -> str:
    """Return the path of a folder of this machine."""
    from stoker.storage.urls import local_folder

    try:
        return str(local_folder(text, what="it"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def window(text: str) -> int | Literal["all"]:
    """Return a number of chunks, or "all"."""
    return "all" if text == "all" else _integer(text, 1, 'a number of chunks, or "all"')


def seconds(text: str) -> float:
    """Return seconds above 0: "0.01", "10ms", "60s"."""
    match = re.fullmatch(r"\s*([\d.eE+-]+)\s*(us|ms|s|)\s*", text)
    try:
        found = float(match[1]) * {"us": 1e-6, "ms": 1e-3}.get(match[2], 1.0) if match else 0.0
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time above 0: write 0.01 or 10ms")
    return found
