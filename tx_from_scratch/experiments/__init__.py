"""Studies: experiments too long for a notebook cell, stored with everything needed to repeat them.

A study is a script here and a results file of the same name beside it (JSON: every run's settings, seed,
seconds and figures, the versions, the processor). A chapter loads the results, asserts on them, and repeats
one short arm.

    python -m tx_from_scratch.experiments            list the studies
    python -m tx_from_scratch.experiments NAME       run what is missing of one; stop and resume at will
"""

from tx_from_scratch.experiments.study import Results, Run, Study, load_results

__all__ = ["Results", "Run", "Study", "load_results"]
