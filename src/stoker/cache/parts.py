"""What a cache folder is made of, as those see it who open its chunks, publish them and look after them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stoker.cache.files import Files
from stoker.cache.folder import Folder
from stoker.cache.ledger import Ledger
from stoker.cache.locks import Locks
from stoker.cache.manifest import Manifests
from stoker.cache.marks import Marks
from stoker.cache.room import Room
from stoker.errors import CacheError


@dataclass(frozen=True)
class Parts:
    """The parts of one folder, made once for a store.

    Attributes:
        folder: What lies where.
        files: What changes the disk.
        locks: Who uses what.
        marks: Which chunks were checked.
        manifests: The data sets.
        ledger: What is there, in bytes.
        room: Who gets room.
    """

    folder: Folder
    files: Files
    locks: Locks
    marks: Marks
    manifests: Manifests
    ledger: Ledger
    room: Room

    @classmethod
    def of(cls, path: Path, files: Files, *, limit_bytes: int | None) -> Parts:
        """Return those of a folder, which is made if it is not there.

        Raises:
            CacheError: It holds something else, is of another version, or cannot be used.
        """
        folder = Folder(path, files)
        try:
            locks = Locks(folder.locks)
        except OSError as error:
            raise CacheError(
                f"{folder.path} cannot be used as a cache: {error.strerror}; give a folder this user may write to",
                path=folder.path,
            ) from error
        manifests = Manifests(folder.datasets, files)
        return cls(
            folder=folder,
            files=files,
            locks=locks,
            marks=Marks(folder.checked),
            manifests=manifests,
            ledger=Ledger(folder, files, locks, manifests),
            room=Room(folder, files, locks, manifests, limit_bytes=limit_bytes),
        )

    @property
    def path(self) -> Path:
        """The folder."""
        return self.folder.path

    def unwritable(self, error: OSError) -> CacheError:
        """Return what to raise where the disk refuses."""
        return CacheError(f"{self.path} cannot be written to: {error.strerror}", path=self.path)
