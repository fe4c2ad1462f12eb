"""What a wheel has beside its sources: machine code of the loops, so that no process that it is installed for compiles.

    pip install .  ──►  a process a level of processors has numba compile all loops, side by side   40 s on two cores
                   ──►  the wheel has machine_code/images/loops-<level>.bin

Made from the sources that are packed, with what the wheel itself depends on. Where that does not work (another kind of
machine, no numba that knows it) the wheel is one without: the first process compiles.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_IMAGES = "stoker/machine_code/images"
_LONGEST_S = 600  # half a minute each; a stuck compiler shall not hold up an installation for ever


class MachineCodeHook(BuildHookInterface):
    """Puts an image a level into wheels that are built; not into those of editable installs, whose sources change."""

    def dependencies(self) -> list[str]:
        """Return what must be installed where the wheel is built."""
        return self.metadata.core.dependencies if _can_be_made() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the images, in a folder that `finalize` removes."""
        if version == "editable" or not _can_be_made():
            return
        self._folder = tempfile.TemporaryDirectory(prefix="stoker-wheel-")
        for image in self._make(Path(self.root) / "src", Path(self._folder.name)):
            build_data["force_include"][str(image)] = f"{_IMAGES}/{image.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was made, now that it is packed."""
        del version, build_data, artifact_path
        if hasattr(self, "_folder"):
            self._folder.cleanup()

    def _make(self, sources: Path, folder: Path) -> list[Path]:
        """Return the images that could be made, by compilers that run side by side."""
        sys.path.insert(0, str(sources))
        try:
            from stoker.machine_code.processors import LEVELS, environment
        except ImportError as error:  # built without isolation, where nothing is installed
            self.app.display_warning(f"The wheel gets no machine code: {error}")
            return []
        finally:
            sys.path.remove(str(sources))
        # Its own folder, so that what numba keeps stays out of the sources, and out of the way of the other levels.
        compilers = {
            level: subprocess.Popen(
                [sys.executable, "-m", "stoker.compiling"],
                env=os.environ
                | environment(level)
                | {"PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1", "NUMBA_CACHE_DIR": str(folder / level)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for level in LEVELS.values()
        }
        made = []
        for level, compiler in compilers.items():
            image = folder / level / "stoker" / f"loops-{level}.bin"
            try:
                said, _ = compiler.communicate(timeout=_LONGEST_S)
            except subprocess.TimeoutExpired:
                compiler.kill()
                said = f"no end after {_LONGEST_S} s"
            if image.exists():
                made.append(image)
            else:
                self.app.display_warning(f"The wheel gets no machine code for {level}: {said}")
        return made


def _can_be_made() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"
