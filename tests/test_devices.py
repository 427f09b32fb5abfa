"""The choice of the device."""

import pytest
import torch

from tx_from_scratch.training import (
    best_device,
)


def test_device_can_be_forced(monkeypatch):
    monkeypatch.setenv("TX_DEVICE", "cpu")
    assert best_device() == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:x"])
def test_unknown_device(monkeypatch, name):
    monkeypatch.setenv("TX_DEVICE", name)
    with pytest.raises(ValueError, match=f"TX_DEVICE must be cpu, cuda, cuda:<number> or mps, got '{name}'"):
        best_device()


@pytest.mark.parametrize("name", ["cuda", "mps", "cuda:1"])
def test_forced_device_that_is_not_there(monkeypatch, name):
    monkeypatch.setenv("TX_DEVICE", name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"TX_DEVICE={name}, but PyTorch .* sees 0"):
        best_device()


def test_best_device_prefers_cuda_then_mps_then_cpu(monkeypatch):
    monkeypatch.delenv("TX_DEVICE", raising=False)
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda here=cuda: here)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda here=mps: here)
        assert best_device().type == expected
