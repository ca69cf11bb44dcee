"""Seeds of sampling: a pure function of a turn's place in the run, so that a resume or a retry draws the same tokens.

The number of the try is left out on purpose: an infrastructure failure must not change what the policy samples.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

__all__ = ["RolloutSeeds", "turn_seed"]

_MASK_63 = (1 << 63) - 1


def turn_seed(*, run_seed: int, step: int, group_index: int, chain: int, turn: int) -> int:
    """Seed of one generation, in [0, 2**63): BLAKE2b over the five numbers (each must fit in 64 bits, signed)."""
    place = struct.pack("<5q", run_seed, step, group_index, chain, turn)
    digest = hashlib.blake2b(place, digest_size=8, person=b"turn-seed").digest()
    return int.from_bytes(digest, "little") & _MASK_63


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSeeds:
    """Seeds of one collection: the run's seed and the step (an evaluation takes a step number no training step has)."""

    run_seed: int
    step: int

    def turn(self, group_index: int, chain: int, turn: int) -> int:
        """Seed of turn `turn` (from 0) of a chain; `group_index` is the problem's place within the collection."""
        return turn_seed(run_seed=self.run_seed, step=self.step, group_index=group_index, chain=chain, turn=turn)
