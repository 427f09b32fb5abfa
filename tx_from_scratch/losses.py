"""The training objective: cross-entropy against a target that is not quite certain.

q   = (1 - smoothing) · onehot(target) + smoothing / classes         Szegedy et al. 2015, arXiv:1512.00567
loss = - Σ_class q · log softmax(logits),  over all tokens that are no padding
"""

from typing import Literal

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from tx_from_scratch.data import Batch


def label_smoothed_cross_entropy(
    logits: Float[Tensor, "*tokens vocab"],
    target: Int[Tensor, "*tokens"],
    *,
    smoothing: float = 0.1,
    pad_id: int | None = 0,
    reduction: Literal["mean", "sum"] = "mean",
    smooth_padding_class: bool = True,
) -> Float[Tensor, ""]:
    """Cross-entropy with label smoothing; padding in the target contributes nothing.

    The target distribution is (1 - smoothing) · onehot + smoothing / V over all V classes, the true one
    included: what `F.cross_entropy(label_smoothing=smoothing)` computes. tensor2tensor gives
    the true class exactly 1 - e and each other one e / (V - 1): the same with smoothing = e · V / (V - 1).

    Its minimum is the entropy of that distribution, not 0, so take the perplexity with smoothing 0.

    Args:
        logits: (..., V) of any float type; computed in at least fp32.
        target: (...) class numbers.
        smoothing: how much of the target is spread out, 0 <= smoothing <= 1.
        pad_id: the target that stands for nothing; None if every target counts.
        reduction: "mean" over the tokens that are no padding (0 if there are none), or their "sum".
        smooth_padding_class: without it, the class `pad_id`, which is never right, gets no share of what is
            spread out: smoothing / (V - 1) for every other class, the true one included.

    Raises:
        ValueError: shapes that do not fit, a target outside 0 <= target < V, or an argument out of range.

    Source: Szegedy et al. 2015, section 7, arXiv:1512.00567; smoothing 0.1: Vaswani et al. 2017,
    section 5.4, arXiv:1706.03762.
    """
    classes = logits.shape[-1]
    if logits.shape[:-1] != target.shape:
        raise ValueError(
            f"target must have the shape of logits without its last axis, {tuple(logits.shape[:-1])}, "
            f"got {tuple(target.shape)}"
        )
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing must be at least 0 and at most 1, got {smoothing}")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
    if not smooth_padding_class and (pad_id is None or not 0 <= pad_id < classes):
        raise ValueError(f"pad_id must be a class, 0 to {classes - 1}, to be left out of it, got {pad_id}")
    real = torch.ones_like(target, dtype=torch.bool) if pad_id is None else target != pad_id
    target = target.masked_fill(~real, 0)  # pad_id need not be a class (-100)
    _check_classes(target, classes)

    log_p = (
        logits.float().log_softmax(dim=-1) if logits.dtype != torch.float64 else logits.log_softmax(dim=-1)
    )
    true = log_p.gather(-1, target[..., None])[..., 0]
    spread = log_p.mean(dim=-1)
    if not smooth_padding_class:
        spread = (log_p.sum(dim=-1) - log_p[..., pad_id]) / (classes - 1)
    losses = -((1 - smoothing) * true + smoothing * spread)
    total = losses.where(real, 0).sum()
    return total if reduction == "sum" else total / real.sum().clamp(min=1)


class SequenceLoss:
    """Loss of a sequence-to-sequence model: at every position of the target, predict the next token.

    target   <bos> drei und zwanzig <eos>
    read     <bos> drei und zwanzig
    predict  drei  und  zwanzig <eos>
    """

    def __init__(self, *, smoothing: float = 0.1, pad_id: int = 0) -> None:
        """See `label_smoothed_cross_entropy`."""
        self.smoothing = smoothing
        self.pad_id = pad_id

    def __repr__(self) -> str:
        return f"SequenceLoss(smoothing={self.smoothing}, pad_id={self.pad_id})"

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss summed over the tokens to predict, and the number of them."""
        read, predict = batch.target[:, :-1], batch.target[:, 1:]
        loss = label_smoothed_cross_entropy(
            model(batch.source, read), predict, smoothing=self.smoothing, pad_id=self.pad_id, reduction="sum"
        )
        return loss, (predict != self.pad_id).sum()


class NextTokenLoss:
    """Loss of a language model: at every position of a text, predict the next token.

    window   To be , or not to be
    read     To be , or not to
    predict  be , or not to be
    """

    def __repr__(self) -> str:
        return "NextTokenLoss()"

    def __call__(
        self, model: nn.Module, batch: Int64[Tensor, "batch window"]
    ) -> tuple[Float[Tensor, ""], int]:
        """Cross-entropy in nats summed over all tokens but each window's first, and the number of them.

        `model` maps tokens (batch, length) to logits (batch, length, V), computed in at least fp32 here.

        Raises:
            ValueError: windows too short to predict from, logits that do not fit, or a token outside
                0 <= token < V.
        """
        if batch.ndim != 2 or batch.shape[1] < 2:
            raise ValueError(f"batch must be windows of at least 2 tokens each, got {tuple(batch.shape)}")
        read, predict = batch[:, :-1], batch[:, 1:]
        logits: Tensor = model(read)
        if logits.shape[:-1] != predict.shape:
            raise ValueError(
                f"model must give logits of shape {(*predict.shape, 'V')} for these tokens, "
                f"got {tuple(logits.shape)}"
            )
        _check_classes(predict, logits.shape[-1])
        if logits.dtype != torch.float64:
            logits = logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), predict.flatten(), reduction="sum")
        return loss, predict.numel()


def _check_classes(target: Tensor, classes: int) -> None:
    if torch.compiler.is_compiling() or target.is_meta or not target.numel():
        return  # there are no values to look at
    low, high = (int(bound) for bound in target.aminmax())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise ValueError(f"target must hold classes from 0 to {classes - 1}, got {wrong}")
