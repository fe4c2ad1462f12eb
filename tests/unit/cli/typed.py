"""The `stoker` command, typed in this process."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from stoker.cli import main


def typed(*arguments: object) -> tuple[int, str, str]:
    """Type `stoker` with these arguments; return the exit code, and what it printed on stdout and on stderr."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(list(map(str, arguments)))
    return code, out.getvalue(), err.getvalue()


def answer_of(*arguments: object) -> dict[str, Any]:
    """Return what a command that succeeds answers with --json."""
    code, out, err = typed(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)
