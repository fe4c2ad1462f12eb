"""Build wheels for other machines than this one, by zig's compiler: `python -m tools.wheels [PART OF A TAG ...]`.

CPython 3.11 has a wheel of its own; the stable ABI of 3.12 serves all later ones. Both Pythons are to be on the PATH:
their headers are those of the other machines' too, as far as extensions use them. `--check FILE ...` looks at wheels
that were built before.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Target(NamedTuple):
    """A platform of a wheel: its tag, zig's and CPython's names for it, and the first bytes of its libraries."""

    platform: str
    zig: str
    suffix: str
    magic: bytes


_ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00"  # of 64 bits, a shared library; the machine follows
TARGETS = [
    Target("manylinux_2_17_x86_64", "x86_64-linux-gnu.2.17", "x86_64-linux-gnu", _ELF + b"\x3e\x00"),
    Target("manylinux_2_17_aarch64", "aarch64-linux-gnu.2.17", "aarch64-linux-gnu", _ELF + b"\xb7\x00"),
    # Mach-O of 64 bits for arm64.
    Target("macosx_11_0_arm64", "aarch64-macos.11.0", "darwin", b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01"),
]
PYTHONS = {"python3.11": "cp311-cp311", "python3.12": "cp312-abi3"}


def build(python: str, interpreter: str, target: Target, folder: Path) -> Path:
    """Build one wheel into `folder`, and return where it is."""
    tag = f"{interpreter}-{target.platform}"
    settings = {"wheel.tags": tag, "build-dir": f"build/wheel-{tag}"}
    command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    for name, value in settings.items():
        command += ["--config-settings", f"{name}={value}"]
    suffix = f".cpython-{interpreter[2:].split('-')[0]}-{target.suffix}.so"
    subprocess.run(command, check=True, env=os.environ | {"STOKER_ZIG": target.zig, "SETUPTOOLS_EXT_SUFFIX": suffix})
    (wheel,) = folder.glob(f"stoker-*-{tag}.whl")
    return wheel


def check(wheel: Path) -> str:
    """Return in a line what a wheel holds.

    Raises:
        ValueError: It is not what its name says, or would not load on the oldest system that its name allows.
    """
    target = next(target for target in TARGETS if target.platform in wheel.name)
    tag = wheel.stem.split("-", 2)[2]
    with zipfile.ZipFile(wheel) as archive:
        (library,) = (name for name in archive.namelist() if name.startswith("stoker/_native.") and name[-3:] == ".so")
        content = archive.read(library)
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        tags = re.findall(r"^Tag: (.*)$", archive.read(about).decode(), re.MULTILINE)
    wrong = []
    if tags != [tag]:
        wrong.append(f"its tags are {tags}")
    if ("abi3" in tag) != (library == "stoker/_native.abi3.so") or (".cpython-311-" in library) != ("cp311" in tag):
        wrong.append(f"its library is called {library}")
    if not content.startswith(target.magic):
        wrong.append(f"its library begins with {content[:20].hex()}")
    if b"PyInit__native" not in content:
        wrong.append("its library is no module")
    # All names of ours are hidden: one that the loader would look for was left out by the compiler.
    if own := set(re.findall(rb"_Z\w*6stoker\w+", content)):
        wrong.append(f"its library asks for {sorted(own)[0].decode()}")
    glibc = max((int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", content)), default=0)
    if glibc > 17:
        wrong.append(f"it needs glibc 2.{glibc}")
    if wrong:
        raise ValueError(f"{wheel.name}: {'; '.join(wrong)}")
    return f"{wheel.name}: {library}, {len(content):,} bytes" + (f", glibc 2.{glibc}" if glibc else "")


def main(arguments: list[str]) -> None:
    """Build all wheels, or those whose tags have one of the arguments in them."""
    if arguments[:1] == ["--check"]:
        for name in arguments[1:]:
            print(check(Path(name)))
        return
    for python, interpreter in PYTHONS.items():
        for target in TARGETS:
            tag = f"{interpreter}-{target.platform}"
            if not arguments or any(part in tag for part in arguments):
                print(f"{tag} ...", flush=True)
                print(check(build(python, interpreter, target, ROOT / "dist")), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
