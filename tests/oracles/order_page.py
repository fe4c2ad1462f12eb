"""The programs of docs/reference/order.md, run: another implementation of the order, that a stranger could have."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "order.md"
BLOCK_ROWS = 32  # of weighted draws


def _run() -> SimpleNamespace:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)
    return SimpleNamespace(**{name: value for name, value in names.items() if not name.startswith("__")})


page = _run()
