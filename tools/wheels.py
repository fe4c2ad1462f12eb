"""Build wheels for other machines than this one, by zig's compiler: `python -m tools.wheels [PART OF A TAG ...]`.

CPython 3.11 has a wheel of its own; the stable ABI of 3.12 serves all later ones. Both Pythons are to be on the PATH:
their headers are those of the other machines' too, as far as extensions use them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Target(NamedTuple):
    """A platform of a wheel, as tags, zig and CPython's file names call it."""

    platform: str
    zig: str
    suffix: str


TARGETS = [
    Target("manylinux_2_17_x86_64", "x86_64-linux-gnu.2.17", "x86_64-linux-gnu"),
    Target("manylinux_2_17_aarch64", "aarch64-linux-gnu.2.17", "aarch64-linux-gnu"),
    Target("macosx_11_0_arm64", "aarch64-macos.11.0", "darwin"),
]
PYTHONS = {"python3.11": "cp311-cp311", "python3.12": "cp312-abi3"}


def build(python: str, interpreter: str, target: Target, folder: Path) -> None:
    """Build one wheel into `folder`."""
    tag = f"{interpreter}-{target.platform}"
    settings = {"wheel.tags": tag, "build-dir": f"build/wheel-{tag}"}
    command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    for name, value in settings.items():
        command += ["--config-settings", f"{name}={value}"]
    suffix = f".cpython-{interpreter[2:].split('-')[0]}-{target.suffix}.so"
    subprocess.run(command, check=True, env=os.environ | {"STOKER_ZIG": target.zig, "SETUPTOOLS_EXT_SUFFIX": suffix})


def main(parts: list[str]) -> None:
    """Build all wheels, or those whose tags have one of `parts` in them."""
    for python, interpreter in PYTHONS.items():
        for target in TARGETS:
            tag = f"{interpreter}-{target.platform}"
            if not parts or any(part in tag for part in parts):
                print(f"{tag} ...", flush=True)
                build(python, interpreter, target, ROOT / "dist")


if __name__ == "__main__":
    main(sys.argv[1:])
