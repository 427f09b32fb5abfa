"""What each part of the paper's training recipe does to the translation of number words."""

from tx_from_scratch.experiments.number_words import RECIPE, train_once
from tx_from_scratch.experiments.study import Study

STUDY = Study(
    name="original_recipe",
    question="What do warm-up, Adam's settings, dropout and label smoothing change on number words?",
    arms={
        "as in the paper": RECIPE,
        "no warm-up": {**RECIPE, "rise": False},
        "three times the rate": {**RECIPE, "factor": 0.45},
        "three times the rate, no warm-up": {**RECIPE, "factor": 0.45, "rise": False},
        "PyTorch's Adam": {**RECIPE, "betas": [0.9, 0.999], "eps": 1e-8},
        "no dropout": {**RECIPE, "dropout": 0.0},
        "no label smoothing": {**RECIPE, "smoothing": 0.0},
    },
    seeds=(0, 1, 2),
    measure=train_once,
)
