"""Who may attend to whom, what that costs, and how far information travels over the layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from tx_from_scratch.masks import causal_mask, combine_masks
from tx_from_scratch.plots import COLORS
from tx_from_scratch.sparse import global_mask, layers_to_reach, random_mask, window_mask
from tx_from_scratch.widgets.base import Switch, WholeNumber, Widget

MAX_LENGTH, MAX_LAYERS = 128, 12
PARTS = ("hidden", "window", "global", "random", "everything", "padding")
PART_COLORS = ("white", *COLORS[:4], "#9a9a9a")


@dataclass(frozen=True)
class Visible:
    """A mask, and what follows from it. Real tokens are those that are no padding.

    Attributes:
        mask: True = may attend, (query, key).
        parts: by which part each pair is visible, as an index into PARTS, (query, key); the first of several.
        visible: pairs that are visible, the scores that have to be computed.
        full: pairs that full attention sees under the same causality and padding.
        layers: after how many layers a key can influence a query, −1 for never, (query, key).
        share: of the pairs of real tokens that causality permits, those reached after 1 ... 12 layers, (12,).
        all_after: layers until all of those are reached; None if some never are.
        empty: queries that may attend to nothing.
    """

    mask: Tensor
    parts: Tensor
    visible: int
    full: int
    layers: Tensor
    share: Tensor
    all_after: int | None
    empty: int


def visibility(
    *,
    length: int,
    causal: bool,
    padding: int,
    windowed: bool,
    window: int,
    n_global: int,
    n_random: int,
    seed: int,
) -> Visible:
    """Compose a mask: (window ∪ global ∪ random, or everything where these are off) ∩ causal ∩ no padding.

    Args:
        length: number of tokens.
        causal: whether nobody reads what comes later.
        padding: how many of the last tokens are padding, which nobody reads; below `length`.
        windowed: whether there is a window.
        window: how far it reaches to either side.
        n_global: how many of the first tokens see all and are seen by all, up to `length`.
        n_random: how many keys each query draws, up to `length`.
        seed: of that draw.
    """
    candidates = [window_mask(length, length, window) & windowed]
    candidates += [global_mask(length, n_global), random_mask(length, n_random, seed)]
    candidates += [torch.full((length, length), not (windowed or n_global or n_random))]
    real = torch.arange(length) < length - padding
    full = combine_masks(causal_mask(length) if causal else None, real.expand(length, length))
    assert full is not None
    parts = torch.zeros(length, length, dtype=torch.long)
    for part, candidate in reversed(list(enumerate(candidates, start=1))):
        parts[candidate & full] = part
    mask = parts > 0
    parts[:, ~real] = PARTS.index("padding")

    layers = layers_to_reach(mask)
    permitted = layers[(causal_mask(length) if causal else torch.ones_like(mask)) & real[:, None] & real]
    reached = [((permitted >= 0) & (permitted <= n)).double().mean() for n in range(1, MAX_LAYERS + 1)]
    return Visible(
        mask,
        parts,
        visible=int(mask.sum()),
        full=int(full.sum()),
        layers=layers,
        share=torch.stack(reached),
        all_after=None if bool((permitted < 0).any()) else int(permitted.max()),
        empty=int((~mask.any(dim=-1)).sum()),
    )


class Visibility(Widget):
    """Build a mask from its parts; see what it costs, and what each token can know after some layers.

    A pair of query and key is visible if the window, a global token or a random draw opens it (or none of
    these is on), and neither causality nor padding closes it. Settings beyond the number of tokens count as
    far as there are tokens: at least one stays that is no padding.

    Args:
        length: number of tokens, 4 to 128.
        causal: nobody reads what comes later.
        padding: how many of the last tokens are padding, 0 to 127; nobody reads these.
        windowed: a query reads its neighbors.
        window: how far to either side, 0 to 127.
        n_global: how many of the first tokens see all and are seen by all, 0 to 32.
        n_random: how many keys each query draws by lot, 0 to 32.
        seed: of that draw, 0 to 9999.
        n_layers: layers on top of each other, 1 to 12.
        query: the token whose reach is followed, 0 to 127.

    Raises:
        ValueError: a setting is out of range.
        TypeError: a setting has the wrong type, or there is none of that name.
    """

    script = "visibility.js"

    length = WholeNumber(32, 4, MAX_LENGTH, "number of tokens")
    causal = Switch(True, "nobody reads what comes later")
    padding = WholeNumber(0, 0, MAX_LENGTH - 1, "how many of the last tokens are padding")
    windowed = Switch(True, "a query reads its neighbors")
    window = WholeNumber(3, 0, MAX_LENGTH - 1, "how far a query sees to either side")
    n_global = WholeNumber(0, 0, 32, "how many of the first tokens see all and are seen by all")
    n_random = WholeNumber(0, 0, 32, "how many keys each query draws by lot")
    seed = WholeNumber(0, 0, 9999, "seed of the random keys")
    n_layers = WholeNumber(4, 1, MAX_LAYERS, "layers on top of each other")
    query = WholeNumber(20, 0, MAX_LENGTH - 1, "the token whose reach is followed")

    def used(self) -> dict[str, Any]:
        """The settings as they count: none beyond the number of tokens."""
        settings = self.settings()
        for name, most in [("padding", -1), ("query", -1), ("n_global", 0), ("n_random", 0)]:
            settings[name] = min(settings[name], self.length + most)
        return settings

    def measure(self) -> Visible:
        """What the library computes from the widget's settings."""
        return visibility(
            **{name: value for name, value in self.used().items() if name not in ("n_layers", "query")}
        )

    def mask(self) -> Tensor:
        """The mask that is shown, True = may attend, (length, length)."""
        return self.measure().mask

    def code(self) -> str:
        """The line of Python that builds this mask from the library's parts."""
        used, n = self.used(), self.length
        parts = [f"window_mask({n}, {n}, {self.window})"] if self.windowed else []
        parts += [f"global_mask({n}, {used['n_global']})"] if used["n_global"] else []
        parts += [f"random_mask({n}, {used['n_random']}, seed={self.seed})"] if used["n_random"] else []
        masks = [" | ".join(parts)] if parts else []
        masks += [f"causal_mask({n})"] if self.causal else []
        masks += [f"torch.arange({n}) < {n - used['padding']}"] if used["padding"] else []
        return f"mask = combine_masks({', '.join(masks or ['None'])})"

    def figure(self) -> Figure:
        """The mask by its parts, the layers until each pair is reached, the share of pairs over layers."""
        here, used = self.measure(), self.used()
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9, 3.2))
        left.imshow(here.parts.numpy(), cmap=ListedColormap(PART_COLORS), vmin=0, vmax=len(PARTS) - 1)
        shown = sorted(set(here.parts.flatten().tolist()) - {0})
        left.legend(
            handles=[Patch(color=PART_COLORS[part], label=PARTS[part]) for part in shown],
            loc="upper center",
            bbox_to_anchor=(0.5, -0.2),
            ncols=2,
            fontsize=8,
        )
        left.set(title="who may attend to whom", xlabel="key", ylabel="query")
        layers = here.layers.numpy()
        steps = np.where((layers >= 0) & (layers <= self.n_layers), layers, np.nan)
        image = middle.imshow(steps, cmap="viridis_r", vmin=0, vmax=self.n_layers)
        figure.colorbar(image, ax=middle, shrink=0.7)
        middle.axhline(used["query"], color="black", linewidth=0.8)
        middle.set(title="layers until a key reaches a query", xlabel="key", ylabel="query")
        for axes in (left, middle):
            axes.grid(False)
        right.plot(range(1, MAX_LAYERS + 1), here.share.numpy(), color=COLORS[0])
        right.plot(self.n_layers, float(here.share[self.n_layers - 1]), "o", color="black")
        right.set(title="share of pairs reached", xlabel="layers", ylim=(0, 1.05))
        return figure

    def describe(self) -> str:
        """The figures that the widget's read-out gives."""
        here, used = self.measure(), self.used()
        limits = ["causal"] if self.causal else []
        limits += [f"the last {used['padding']} are padding"] if used["padding"] else []
        parts = [f"a window of {self.window} to either side"] if self.windowed else []
        parts += [_counted(used["n_global"], "global token")] if used["n_global"] else []
        parts += [_counted(used["n_random"], "random key") + " a query"] if used["n_random"] else []
        row = here.layers[used["query"]]
        known = int(((row >= 0) & (row <= self.n_layers)).sum())
        end = "some never are" if here.all_after is None else f"all are after {here.all_after}"
        counted = "pairs of real tokens" if self.padding else "pairs"
        limited = "".join(f", {limit}" for limit in limits)
        return (
            f"Attention mask of {self.length} tokens{limited}: {', '.join(parts) or 'no sparse part'}. "
            f"{here.visible:,} of {self.length**2:,} pairs are visible; "
            f"full attention would compute {here.full:,}. After {_counted(self.n_layers, 'layer')} "
            f"{100 * here.share[self.n_layers - 1]:.1f} % of the {counted} are reached, {end}; "
            f"token {used['query']} is influenced by {_counted(known, 'token')}. "
            f"{_counted(here.empty, 'query', 'queries')} may attend to nothing."
        )


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"
