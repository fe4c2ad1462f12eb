"""Arguments that several commands share, checked while they are parsed; and exit codes."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, Literal, NoReturn, TypeAlias

from rich.console import Console

from stoker.arguments import near
from stoker.paint import make_console, print_error

# Exit codes, which scripts rely on; docs/reference/cli.md says what each means.
OK, FAILED, WRONG_USAGE, DAMAGED, INTERRUPTED = 0, 1, 2, 3, 130

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
Run: TypeAlias = Callable[[argparse.Namespace, Console], int]


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong, as every other error here."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as ever; what is left over is said by the command that it was given to, not by `stoker`."""
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


def add_command(commands: Commands, name: str, run: Run | None = None, *, doc: str | None = None) -> Parser:
    """Add a command, whose help is a docstring: a line for the list, sentences, and examples of its own.

    Args:
        commands: Where to.
        name: What it is called.
        run: What it does; it takes --json then. None where other commands stand behind it.
        doc: The docstring, where that is not the one of `run`.
    """
    about, _, examples = inspect.cleandoc(doc or run.__doc__ or "").partition("\n\nExamples:\n")
    summary, _, text = about.partition("\n\n")
    parser = commands.add_parser(
        name,
        help=summary[:1].lower() + summary[1:].rstrip("."),
        description=text,
        epilog="examples:\n" + textwrap.indent(textwrap.dedent(examples), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if run is not None:
        parser.set_defaults(run=run)
        option(parser, "--json", "print one JSON object, for scripts")
    return parser


def option(
    parser: argparse._ActionsContainer,
    usage: str,
    text: str,
    kind: Callable[[str], object] | None = None,
    default: object = None,
    **more: Any,
) -> None:
    """Add an option.

    Args:
        parser: Where to, or a group of it.
        usage: As it is typed: "--seed N"; one without a value is a switch, and "--engine here|ray" is one of some
            words, the first unless told.
        text: What it is.
        kind: Turns the text into a value, or refuses it.
        default: Its value when it is not given; help tells it.
        **more: As of `add_argument`.
    """
    name, _, value = usage.partition(" ")
    if not value:
        parser.add_argument(name, action="store_true", help=text)
        return
    given: dict[str, Any] = {"metavar": value, "type": kind}
    if value.islower() and "|" in value:
        given = {"choices": value.split("|")}
        default = given["choices"][0]
    told = "" if default is None else f" (default: {default})"
    parser.add_argument(name, help=text + told, default=default, **given | more)


def add_order(parser: argparse.ArgumentParser, *, shuffle: bool) -> None:
    """Add what decides the order: the arguments of `Loader`, under their names."""
    group = parser.add_argument_group("the order, as your Loader has it")
    option(group, "--batch-size B", "samples a batch, on one rank", at_least_1, required=True)
    told = f"whether it shuffles (default: {'yes' if shuffle else 'no'})"
    group.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=shuffle, help=told)
    option(group, "--seed N", "seed of the shuffle", int, 0)
    option(group, "--window K", 'chunks that are mixed together, or "all" (default: about 512 MiB)', window)
    option(group, "--lanes N", "lanes", at_least_1, 1)
    option(group, "--epoch E", "which epoch, from 0 on", at_least_0, 0)
    option(group, "--world-size W", "number of ranks", at_least_1, 1)


def at_least_0(text: str) -> int:
    """Return an integer from 0 on."""
    return _integer(text, 0)


def at_least_1(text: str) -> int:
    """Return an integer from 1 on."""
    return _integer(text, 1)


def part(text: str) -> tuple[int, int]:
    """Return which one of how many parts, from "0/8" to "7/8"."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no part: of eight, the first is 0/8 and the last 7/8")
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


def _integer(text: str, least: int, what: str = "a whole number") -> int:
    try:
        number = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is less than {least}")
    return number
