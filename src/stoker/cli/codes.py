"""Exit codes, which scripts rely on; docs/reference/cli.md says what each means."""

from __future__ import annotations

OK = 0
FAILED = 1
WRONG_USAGE = 2
DAMAGED = 3
INTERRUPTED = 130
