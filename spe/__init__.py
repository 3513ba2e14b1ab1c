"""Stochastic prototype embeddings: the code that the book derives, for reuse.

The core is three small files: :mod:`spe.gaussian`, :mod:`spe.prototypes` and
:mod:`spe.posterior`. Importing ``spe`` needs torch and numpy alone; the classifier also
needs scikit-learn, which is imported when ``spe.FewShotClassifier`` is first asked for.
"""

from typing import Any

from spe.encoders import DigitEncoder, Encoder, LShapeEncoder, OmniglotEncoder
from spe.episodes import Episode, Pairs, sample_episode, sample_pairs
from spe.gaussian import Gaussian, multiply, product
from spe.models import (
    ContrastiveEmbedding,
    HedgedInstanceEmbedding,
    PrototypicalNetwork,
    StochasticPrototypes,
)
from spe.posterior import log_density, log_posterior, target_log_posterior
from spe.prototypes import add_support, prototypes

__version__ = "1.0.0"

__all__ = [
    "ContrastiveEmbedding",
    "DigitEncoder",
    "Encoder",
    "Episode",
    "FewShotClassifier",
    "Gaussian",
    "HedgedInstanceEmbedding",
    "LShapeEncoder",
    "OmniglotEncoder",
    "Pairs",
    "PrototypicalNetwork",
    "StochasticPrototypes",
    "add_support",
    "log_density",
    "log_posterior",
    "multiply",
    "product",
    "prototypes",
    "sample_episode",
    "sample_pairs",
    "target_log_posterior",
]


def __getattr__(name: str) -> Any:
    if name == "FewShotClassifier":
        from spe.classifier import FewShotClassifier

        return FewShotClassifier
    raise AttributeError(f"module 'spe' has no attribute {name!r}")
