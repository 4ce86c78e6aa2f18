"""What predictions of serving were off by, on rows measured by others: by engine."""

from typing import NamedTuple


class ServingPrior(NamedTuple):
    """Median errors (%) of rows that are alike in something."""

    alike: str
    rows: int
    tpot_pct: float
    ttft_pct: float


_PRIORS = {
    "vllm": ServingPrior("vLLM", 655, 7.3, 18.4),
    "sglang": ServingPrior("SGLang", 248, 11.6, 26.1),
    "trtllm": ServingPrior("TensorRT-LLM", 342, 11.3, 15.6),
    "all": ServingPrior("all engines", 1245, 9.0, 18.9),
}
"""Aggregated rows without drafts of InferenceX's client, by engine
(``twofold validate --serving measured_serving.csv``; docs/background/serving.md)."""


def serving_prior(engine: str) -> ServingPrior:
    """Return what predictions of an engine were off by; of all engines for one without rows.

    Examples
    --------
    >>> serving_prior("orca").alike
    'all engines'
    """
    return _PRIORS.get(engine, _PRIORS["all"])
