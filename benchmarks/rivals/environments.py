"""One virtual environment for each contestant, made once."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.rivals.contestants import Contestant

_ROOT = Path(__file__).resolve().parents[2]


def python_of(contestant: Contestant, folder: Path) -> Path:
    """Return the interpreter of the contestant's environment, installing what it needs first.

    Raises:
        RuntimeError: pip failed; the message is its own.
    """
    name = "stoker" if contestant.key.startswith("stoker") else contestant.key
    place = folder.resolve() / name
    python = place / "bin" / "python"
    marker = place / "complete"
    wanted = "\n".join((*contestant.requirements, "--", *contestant.without_dependencies))
    if marker.exists() and marker.read_text() == wanted:
        return python
    if "-e ." in contestant.requirements and _is_here():
        return Path(sys.executable)
    venv.create(place, with_pip=True, clear=True)
    _pip(python, [part for requirement in contestant.requirements for part in requirement.split(" ")])
    if contestant.without_dependencies:
        _pip(python, ["--no-deps", *contestant.without_dependencies])
    marker.write_text(wanted)  # last: an interrupted installation is begun anew
    return python


def _is_here() -> bool:
    """Whether the interpreter that runs the benchmark has Stoker itself, as `make bench-rivals` makes it have."""
    return subprocess.run([sys.executable, "-c", "import stoker"], capture_output=True, check=False).returncode == 0


def _pip(python: Path, arguments: list[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"pip install {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
