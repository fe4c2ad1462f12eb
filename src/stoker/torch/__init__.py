"""Batches as torch tensors, on the CPU or on the device that trains.

from stoker.torch import TorchLoader     a loop of your own
from stoker.torch import TorchDataset    inside a torch DataLoader, for frameworks that want one
"""

from stoker.fields.ragged import register_pytrees
from stoker.torch.dataset import TorchDataset
from stoker.torch.loader import TorchLoader
from stoker.torch.tensors import Tensors, to_nested

__all__ = ["Tensors", "TorchDataset", "TorchLoader", "to_nested"]

register_pytrees()
