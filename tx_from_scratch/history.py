"""What a training run leaves behind besides the weights."""

from dataclasses import dataclass, field


@dataclass
class History:
    """What happened at every step. Lists have one entry a step; the step numbers 1, 2, ... are implied.

    Attributes:
        loss: mean loss of a token.
        learning_rate: of the first parameter group.
        gradient_norm: of all gradients together, before clipping.
        tokens: that counted, over all processes.
        seconds: since the run began, pauses between resumed parts left out.
        evaluations: (step, results).
        interrupted: whether the run was stopped by a signal (Ctrl-C, SIGTERM) before its budget was used up.
    """

    loss: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    gradient_norm: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    interrupted: bool = False

    def __len__(self) -> int:
        """Steps made."""
        return len(self.loss)

    def append(
        self, loss: float, learning_rate: float, gradient_norm: float, tokens: int, seconds: float
    ) -> None:
        """Note one more step."""
        self.loss.append(loss)
        self.learning_rate.append(learning_rate)
        self.gradient_norm.append(gradient_norm)
        self.tokens.append(tokens)
        self.seconds.append(seconds)

    def __repr__(self) -> str:
        last = f", loss {self.loss[-1]:.4f}" if self.loss else ""
        return f"History({len(self)} steps{last}{', interrupted' if self.interrupted else ''})"
