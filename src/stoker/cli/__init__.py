"""The `stoker` command: parses, calls, prints. What it does is done elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: OK, FAILED, WRONG_USAGE, DAMAGED or INTERRUPTED."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        from stoker.paint import make_console  # without NumPy, which cannot be loaded again where that was interrupted

        make_console(stderr=True).print("interrupted", style="yellow")
        return 130  # INTERRUPTED of `stoker.cli.arguments`, which loads NumPy


def _run(arguments: Sequence[str] | None) -> int:
    # Imported here, where Ctrl-C is answered: it may come while they are loaded.
    from stoker import __version__
    from stoker.cli.arguments import FAILED, OK, WRONG_USAGE
    from stoker.cli.commands import make_parser
    from stoker.cli.interrupts import ending_in_order
    from stoker.errors import StokerError
    from stoker.paint import make_console, print_error

    _survive_narrow_encodings()
    parser = make_parser()
    try:
        options = parser.parse_args(arguments)
        if options.version:
            make_console().print(f"stoker {__version__}")
            return OK
        if "command" not in options:
            parser.print_help(sys.stderr)
            return WRONG_USAGE
        with ending_in_order():
            module, _, function = options.command.partition(" ")
            run = getattr(import_module(f"stoker.cli.{module}"), function or "run")
            return int(run(options, make_console()))
    except SystemExit as leaving:  # argparse has said what is wrong, or printed its help
        return leaving.code if isinstance(leaving.code, int) else WRONG_USAGE
    except (StokerError, OSError, ValueError, TypeError) as error:
        # What a build process adds is a traceback, for people who debug.
        notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("in a build process")]
        print_error(make_console(stderr=True), _text(error), notes=notes)
        # The others are the library's own words for an argument that makes no sense.
        return FAILED if isinstance(error, StokerError | OSError) else WRONG_USAGE


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _survive_narrow_encodings() -> None:
    """Print a question mark, not a traceback, where a terminal's encoding lacks a character, or a name is no text."""
    for stream in (sys.stdout, sys.stderr):
        encoding = (getattr(stream, "encoding", "") or "").lower().replace("-", "")
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace" if encoding == "utf8" else "replace")
