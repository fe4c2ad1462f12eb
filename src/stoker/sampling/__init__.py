"""Which samples, in which step: pure arithmetic on integers; no disk, clock, thread or random module.

epoch      chunks, windows and lanes: which sample stands at which position
steps      which positions, and which samples, a rank takes in a step
mixture    several data sets as one order, mixed by weights
units      which rows groups, windows, packed rows and draws by weight stand for
quality    how well an order mixes
position   all that must be saved to go on, and what that tells of the files
"""

from stoker.sampling.epoch import Order
from stoker.sampling.position import Position
from stoker.sampling.steps import RankShare, Slice, Steps

__all__ = [
    "Order",
    "Position",
    "RankShare",
    "Slice",
    "Steps",
]
