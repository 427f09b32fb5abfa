"""Where to compute."""

import os

import torch


def best_device() -> torch.device:
    """The fastest device here: a CUDA GPU, else an Apple GPU (mps), else the CPU.

    The environment variable TX_DEVICE (cuda, cuda:1, mps, cpu) overrides it. Under torchrun every process
    gets the GPU of its LOCAL_RANK.

    Raises:
        ValueError: TX_DEVICE names no device, or one that this machine does not have.
    """
    forced = os.environ.get("TX_DEVICE")
    if forced:
        return _forced_device(forced)
    if torch.cuda.is_available():
        return _local_gpu()
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _forced_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"TX_DEVICE must be cpu, cuda, cuda:<number> or mps, got {name!r}")
    available = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }[device.type]
    if (device.index or 0) >= available:
        raise ValueError(
            f"TX_DEVICE={name}, but PyTorch {torch.__version__} sees {available} {device.type} devices here; "
            "unset it to let the best one be chosen"
        )
    return _local_gpu() if name == "cuda" else device


def _local_gpu() -> torch.device:
    local_rank = os.environ.get("LOCAL_RANK")
    if local_rank is None:
        return torch.device("cuda")
    device = torch.device("cuda", int(local_rank))
    torch.cuda.set_device(device)
    return device
