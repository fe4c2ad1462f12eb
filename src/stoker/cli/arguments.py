"""Arguments that several commands share, checked while they are parsed; and exit codes."""

from __future__ import annotations

import argparse
import re
from typing import Any, Literal, NoReturn, TypeAlias

from stoker.arguments import near
from stoker.cli.paint import make_console, print_error

# Exit codes, which scripts rely on; docs/reference/cli.md says what each means.
OK, FAILED, WRONG_USAGE, DAMAGED, INTERRUPTED = 0, 1, 2, 3, 130

_RAW = argparse.RawDescriptionHelpFormatter

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong, as every other error here."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as ever; what is left over is said by the command that it was given to, not by `stoker`."""
        found, others = super().parse_known_args(args, namespace)
        if others:
            option = next((text for text in others if text.startswith("-")), None)
            if option is None:
                self.error(f"too much: {' '.join(map(repr, others))}")
            hint = near(option.partition("=")[0], self._option_string_actions)
            self.error(f"there is no option {option}" + (f"; {hint}" if hint else ""))
        return found, others

    def error(self, message: str) -> NoReturn:
        """Print the error and the way out, and leave with the code for wrong usage."""
        errors = make_console(stderr=True)
        print_error(errors, message, notes=[f"`{self.prog} --help` shows how"])
        raise SystemExit(WRONG_USAGE)


def add_command(commands: Commands, name: str, *, summary: str, text: str, examples: str) -> Parser:
    """Add a command with its help: a line in the list, some sentences and examples of its own."""
    lines = "\n".join(f"  {line}" for line in examples.strip().splitlines())
    return commands.add_parser(
        name, help=summary, description=text.strip(), epilog=f"examples:\n{lines}", formatter_class=_RAW
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")


def add_cache(parser: argparse.ArgumentParser, text: str) -> None:
    """Add --cache where it is optional."""
    parser.add_argument("--cache", metavar="DIR", type=folder, help=text)


def add_order(parser: argparse.ArgumentParser, *, shuffle: bool) -> None:
    """Add what decides the order: the arguments of `Loader`, under their names."""
    group = parser.add_argument_group("the order, as your Loader has it")
    group.add_argument("--batch-size", metavar="B", type=at_least_1, required=True, help="samples a batch, on one rank")
    group.add_argument(
        "--shuffle",
        action=argparse.BooleanOptionalAction,
        default=shuffle,
        help=f"whether it shuffles (default: {'yes' if shuffle else 'no'})",
    )
    group.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the shuffle (default: 0)")
    group.add_argument(
        "--window", metavar="K", type=window, help='chunks that are mixed together, or "all" (default: about 512 MiB)'
    )
    group.add_argument("--lanes", metavar="N", type=at_least_1, default=1, help="lanes (default: 1)")
    group.add_argument("--epoch", metavar="E", type=at_least_0, default=0, help="which epoch (default: 0, the first)")
    group.add_argument("--world-size", metavar="W", type=at_least_1, default=1, help="number of ranks (default: 1)")


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


def _integer(text: str, least: int, what: str = "a whole number") -> int:
    try:
        number = int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is less than {least}")
    return number
