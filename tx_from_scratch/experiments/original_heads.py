"""How many heads: the same model and width, cut into 1 to 32 heads."""

from tx_from_scratch.experiments.number_words import RECIPE, train_once
from tx_from_scratch.experiments.study import Study

STUDY = Study(
    name="original_heads",
    question="Do too many heads hurt at a fixed width of 128, on English-German number words?",
    arms={f"{heads} heads": {**RECIPE, "n_heads": heads} for heads in (1, 2, 4, 8, 16, 32)},
    seeds=(0, 1, 2),
    measure=train_once,
)
