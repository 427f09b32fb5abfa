"""Training in several processes: who am I, and what do the others have?

`torchrun --nproc-per-node=2 script.py` starts the script twice and tells each copy its rank in environment
variables. Every rank computes the gradients of its own micro-batches; DistributedDataParallel averages them.
"""

import atexit
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train together: `size` of them, of which this one is number `rank`."""

    rank: int
    size: int
    device: torch.device

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as it must be called so that gradients are averaged over the processes."""
        if self.size == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)

    def sum(self, *values: Tensor) -> list[float]:
        """The sum over all processes of each of these numbers."""
        exact = torch.float32 if self.device.type == "mps" else torch.float64
        joint = torch.stack([value.to(self.device, exact) for value in values])
        if self.size > 1:
            dist.all_reduce(joint)
        return list(joint.tolist())

    def wait(self) -> None:
        """Until all processes have come here."""
        self.any(False)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any of the processes."""
        return flag if self.size == 1 else self.sum(torch.tensor(float(flag)))[0] > 0


def process_group(device: torch.device) -> ProcessGroup:
    """The group that torchrun has set up, or a group of one.

    Joins it the first time (NCCL on GPUs, gloo on CPUs), and stays in it until the process ends: whoever left
    could not join again.
    """
    if not dist.is_available():
        return ProcessGroup(0, 1, device)
    if dist.is_torchelastic_launched() and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_leave)
    if not dist.is_initialized():
        return ProcessGroup(0, 1, device)
    return ProcessGroup(dist.get_rank(), dist.get_world_size(), device)


def rank() -> int:
    """This process's number among those that torchrun has started; 0 without torchrun."""
    return int(os.environ.get("RANK", 0))


def without_exchange(model: nn.Module) -> AbstractContextManager[None]:
    """Inside, gradients add up in this process and are not yet averaged over the others."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
