"""Which share of every global batch this process takes: settled when it must be known, and never alone by accident."""

from __future__ import annotations

import contextlib
import logging

from stoker.loader.claims import (
    SAY_WHICH,
    Claim,
    brought_together,
    data_loader_worker,
    launched_claim,
    live_claims,
)
from stoker.loader.shard import Shard

_log = logging.getLogger("stoker")


class Ranks:
    """What a loader's arguments say of ranks, and what its environment says at the first time that it matters.

        rank=, world_size=    which rank this process is: as the environment says, where it does
        shard=                which share it takes: perhaps the same as other ranks
        neither               the libraries of this process decide, then the launcher's variables, then it is alone

    Args:
        rank: As given to a loader.
        world_size: As given to a loader.
        shard: As given to a loader.
        serves_workers: Whether workers of a torch `DataLoader` may use it: copies of it, which take the share of the
            process that owns the DataLoader. Any other loader would deliver everything in each of them.

    Raises:
        TypeError: One is of the wrong type.
        ValueError: One is out of range, or they contradict each other, or one of a pair is missing.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        shard: Shard | None = None,
        serves_workers: bool = False,
    ) -> None:
        self._argument = "shard="
        if shard is None and (rank is not None or world_size is not None):
            self._argument = "rank= and world_size="
            if world_size is None and rank:
                raise ValueError(f"rank {rank} of how many? Give world_size too, or leave both out")
            if rank is None and world_size != 1:
                raise ValueError(f"world_size {world_size}, but which rank is this? Give rank too, or leave both out")
            shard = Shard(0 if rank is None else rank, 1 if world_size is None else world_size)
        elif rank is not None or world_size is not None:
            raise ValueError("shard says both rank and world_size; give either that or these")
        if shard is not None and not isinstance(shard, Shard):
            raise TypeError(f"shard must be a stoker.Shard, not {shard!r}")
        self.given = shard
        self._serves_workers = serves_workers
        self._settled: tuple[Shard, str] | None = None
        self._of_owner: tuple[Shard, str] | ValueError | None = None  # in a worker that was not forked
        self._seen: tuple[bool, ...] | None = None  # of who brings ranks together

    def settle(self) -> Shard:
        """Decide, the first time; later, make sure that nothing says otherwise by now.

        Raises:
            ValueError: The arguments contradict the environment, or the environment itself.
            RuntimeError: What was decided turns out wrong.
        """
        if self._settled is None:
            shard, why = self._decided()
            if self.given is None:
                _log.info("rank %d of %d: %s", shard.rank, shard.world_size, why)
            self._settled = shard, why
        else:
            self._prove(*self._settled)
        self._seen = brought_together()
        return self._settled[0]

    def own(self) -> None:
        """Decide for this process and its workers, which is no worker of the one that this was copied from."""
        self._of_owner = None

    def prove(self) -> None:
        """Raise as `settle` does where somebody has brought ranks together since. Costs next to nothing."""
        if brought_together() != self._seen:
            self.settle()

    def guess(self) -> Shard:
        """Return what `settle` would decide now, without deciding; one rank of one where it would raise."""
        if self._settled is not None:
            return self._settled[0]
        try:
            return self._decided()[0]
        except ValueError:
            return self.given or Shard()

    def __getstate__(self) -> dict[str, object]:
        """Return what a worker needs that knows nothing of ranks itself; any other process decides anew."""
        decided = self._settled
        if decided is None:
            try:
                decided = self._decided()
            except ValueError as error:
                return self.__dict__ | {"_of_owner": error}
        return self.__dict__ | {"_settled": None, "_seen": None, "_of_owner": decided}

    def _decided(self) -> tuple[Shard, str]:
        worker = data_loader_worker()
        if worker is not None and self._serves_workers and self._of_owner is not None:
            if isinstance(self._of_owner, ValueError):
                raise self._of_owner
            return self._of_owner
        if self.given is not None:
            self._check(self.given)
            return self.given, f"{self._argument} says so"
        if worker is not None and not self._serves_workers:
            raise ValueError(
                f"this loader is used in worker {worker[0]} of {worker[1]} of a DataLoader, and each of them would "
                "deliver all batches: give the DataLoader a stoker.torch.TorchDataset, or use the loader in its place"
            )
        claims = live_claims()
        if not claims or claims[0].world_size == 1:
            claims += _launched()
        if not claims:
            return Shard(), "nothing told of others"
        for claim in claims[1:]:
            if not claim.agrees(claims[0].rank, claims[0].world_size):
                raise ValueError(f"{claims[0]}, but {claim}: {SAY_WHICH}")
        return Shard(claims[0].rank, claims[0].world_size), str(claims[0])

    def _check(self, given: Shard) -> None:
        """Raise where what was given cannot be right, whatever was meant."""
        is_share = self._argument == "shard="
        if not given.checked or (is_share and given.world_size == 1):
            return
        if data_loader_worker() and not self._serves_workers:  # each of them may well have a share of its own
            return
        claims = live_claims()
        if not claims:
            with contextlib.suppress(ValueError):  # then the environment says nothing that holds
                claims = _launched()
        if claims and not any(_fits(given, claim, is_share=is_share) for claim in claims):
            on_purpose = "" if given.world_size == 1 else ", checked=False"
            raise ValueError(
                f"{self._argument} {'says' if is_share else 'say'} rank {given.rank} of {given.world_size}, but "
                f"{claims[0]}. Leave it out and the loader takes that; if you mean it, write "
                f"shard=stoker.Shard({given.rank}, {given.world_size}{on_purpose})"
            )

    def _prove(self, shard: Shard, why: str) -> None:
        """Raise where what was decided cannot be right any more. Who falls silent, as at the end, says nothing."""
        if data_loader_worker():  # what its owner knew, or knew as it forked
            return
        if self.given is not None:
            self._check(self.given)
            return
        claims = live_claims()
        if not claims and shard.world_size == 1:
            claims = _launched()
        for claim in claims:
            if not claim.agrees(shard.rank, shard.world_size):
                raise RuntimeError(
                    f"this loader took the share of rank {shard.rank} of {shard.world_size} when it was first used "
                    f"({why}), but now {claim}: use it, and ask for its length, only once the ranks are known"
                )


def _launched() -> list[Claim]:
    claim = launched_claim()
    return [] if claim is None else [claim]


def _fits(given: Shard, claim: Claim, *, is_share: bool) -> bool:
    if given.world_size == claim.world_size:
        return given.rank == claim.rank
    if given.world_size > claim.world_size:  # a launcher may count nodes, each of which starts several ranks
        num_each, rest = divmod(given.world_size, claim.world_size)
        return not claim.is_live and not rest and given.rank // num_each == claim.rank
    return is_share and claim.world_size % given.world_size == 0  # several get the same batches
