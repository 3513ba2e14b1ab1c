"""Four embeddings with one interface: a batch in, a loss out; images in, Gaussians out.

Chapter 6 builds the prototype models, chapter 11 their rivals. ``kind`` tells a
training loop what to feed: ``"episodes"`` or ``"pairs"`` (see :mod:`spe.episodes`).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spe.checks import POINTS, check_count, check_option
from spe.encoders import Encoder
from spe.episodes import Episode, Pairs
from spe.gaussian import Gaussian
from spe.posterior import ESTIMATORS, log_density, target_log_posterior
from spe.prototypes import prototypes

VAR_FLOOR = 1e-6  # softplus rounds to 0 in float32; a variance must not
GAMMA_0 = 0.01  # the paper's gamma_0 (Appendix B)


def inverse_softplus(value: float) -> float:
    """The number whose softplus is ``value``."""
    return value + math.log(-math.expm1(-value))


class StochasticEmbedding(nn.Module):
    """Base of the two stochastic models: the encoder's output as a Gaussian (Eq. 1)."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        _check_encoder(encoder, stochastic=True)
        self.encoder = encoder

    def embed(self, images: Tensor) -> Gaussian:
        """The Gaussian of each image: mean, and variance by a softplus with a floor."""
        mean, raw = self.encoder(images).chunk(2, dim=-1)
        return Gaussian(mean, F.softplus(raw) + VAR_FLOOR)


class PointEmbedding(nn.Module):
    """Base of the two deterministic models: a Gaussian of variance zero."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        _check_encoder(encoder, stochastic=False)
        self.encoder = encoder

    def embed(self, images: Tensor) -> Gaussian:
        """The point of each image."""
        mean = self.encoder(images)
        return Gaussian(mean, torch.zeros_like(mean))


class StochasticPrototypes(StochasticEmbedding):
    """Stochastic prototype embedding, trained on episodes by the loss of Eq. 9.

    ``n_support`` sets where the learned noise starts (Appendix B):
    gamma = n_support * 0.01^(2/d), noise = softplus(gamma). The paper counts the support
    examples of a whole episode; counting those of one class, as most recorded runs of this
    book do, starts lower.
    """

    kind = "episodes"

    def __init__(
        self,
        encoder: Encoder,
        n_support: int,
        estimator: str = "intersection",
        n_samples: int = 1,
        points: str = "random",
    ) -> None:
        super().__init__(encoder)
        check_count("n_support", n_support)
        check_count("n_samples", n_samples)
        check_option("estimator", estimator, ESTIMATORS)
        check_option("points", points, POINTS)
        self.gamma = nn.Parameter(torch.tensor(n_support * GAMMA_0 ** (2 / encoder.d)))
        self.estimator = estimator
        self.n_samples = n_samples
        self.points = points

    @property
    def noise(self) -> Tensor:
        """The variance sigma^2_epsilon between an example and its prototype (Eq. 3)."""
        return F.softplus(self.gamma)

    def loss(self, batch: Episode, generator: torch.Generator | None = None) -> Tensor:
        """Mean negative log-probability of the queries' classes."""
        embedded, n = self.embed(batch.images), batch.n_support
        classes = prototypes(embedded[:n], batch.labels[:n], self.noise, batch.n_way)
        return -target_log_posterior(
            embedded[n:],
            classes,
            self.noise,
            batch.labels[n:],
            self.estimator,
            self.n_samples,
            self.points,
            generator,
        ).mean()


class PrototypicalNetwork(PointEmbedding):
    """The deterministic sibling: class means and squared Euclidean distances."""

    kind = "episodes"

    def loss(self, batch: Episode, generator: torch.Generator | None = None) -> Tensor:
        """Mean cross-entropy of the queries' classes."""
        embedded, n = self.embed(batch.images), batch.n_support
        equal = Gaussian(embedded.mean, torch.ones_like(embedded.var))
        means = prototypes(equal[:n], batch.labels[:n], 0.0, batch.n_way).mean
        logits = point_logits(embedded.mean[n:], means)
        return F.cross_entropy(logits, batch.labels[n:])


def point_logits(z: Tensor, means: Tensor) -> Tensor:
    """Minus the squared distance of each point to each mean, up to a constant (chapter 3).

    Squared Euclidean distance is a Gaussian of variance 1/2 in every direction.
    """
    return log_density(z, Gaussian(means, torch.full_like(means, 0.5)))


class MatchHead(nn.Module):
    """Probability that two embedded points match: sigmoid(b - a |z - z'|), a > 0."""

    def __init__(self) -> None:
        super().__init__()
        self.raw_slope = nn.Parameter(torch.tensor(inverse_softplus(1.0)))
        self.offset = nn.Parameter(torch.tensor(1.0))

    def forward(self, difference: Tensor) -> Tensor:
        """The logit for each difference of two points (..., d)."""
        distance = torch.linalg.vector_norm(difference, dim=-1)
        return self.offset - F.softplus(self.raw_slope) * distance


def log_match(logits: Tensor, match: Tensor) -> Tensor:
    """Log-probability of the observed match or mismatch, averaged over leading samples.

    Probabilities are averaged, not their logs: log-mean-exp of log-sigmoid.
    """
    signed = torch.where(match, logits, -logits)
    samples = signed.reshape(-1, logits.shape[-1])
    return F.logsigmoid(samples).logsumexp(0) - math.log(len(samples))


class HedgedInstanceEmbedding(StochasticEmbedding):
    """HIB: soft contrastive loss over samples of both inputs, and an information bottleneck."""

    kind = "pairs"

    def __init__(self, encoder: Encoder, beta: float = 1e-4, n_samples: int = 8) -> None:
        super().__init__(encoder)
        check_count("n_samples", n_samples)
        if not beta >= 0:
            raise ValueError(f"beta={beta}; expected a number of at least 0")
        self.head = MatchHead()
        self.beta = beta
        self.n_samples = n_samples

    def loss(self, batch: Pairs, generator: torch.Generator | None = None) -> Tensor:
        """Cross-entropy of match over all K x K sample pairs, plus beta times both KLs."""
        embedded = self.embed(batch.images)
        z = embedded.sample(self.n_samples, generator)  # (K, images, d)
        logits = self.head(z[:, None, batch.left] - z[:, batch.right])  # (K, K, pairs)
        divergence = kl_to_standard(embedded)
        bottleneck = divergence[batch.left] + divergence[batch.right]
        return (self.beta * bottleneck - log_match(logits, batch.match)).mean()


def kl_to_standard(g: Gaussian) -> Tensor:
    """Kullback-Leibler divergence from each Gaussian to N(0, I), in nats."""
    return 0.5 * (g.var + g.mean.square() - 1 - g.var.log()).sum(-1)


class ContrastiveEmbedding(PointEmbedding):
    """Contrastive loss: squared distance for matches, squared shortfall of a margin for others.

    ``form="soft"`` is the limit of HIB at zero variance and beta: logistic in the distance.
    """

    kind = "pairs"

    def __init__(self, encoder: Encoder, form: str = "margin", margin: float = 1.0) -> None:
        super().__init__(encoder)
        check_option("form", form, ("margin", "soft"))
        if not margin > 0:
            raise ValueError(f"margin={margin}; expected a positive number")
        self.form = form
        self.margin = margin
        if form == "soft":
            self.head = MatchHead()

    def loss(self, batch: Pairs, generator: torch.Generator | None = None) -> Tensor:
        """Mean loss over the pairs."""
        z = self.embed(batch.images).mean
        difference = z[batch.left] - z[batch.right]
        if self.form == "soft":
            return -log_match(self.head(difference)[None], batch.match).mean()
        distance = torch.linalg.vector_norm(difference, dim=-1)
        shortfall = F.relu(self.margin - distance)
        return torch.where(batch.match, distance.square(), shortfall.square()).mean()


def _check_encoder(encoder: Encoder, stochastic: bool) -> None:
    if not (hasattr(encoder, "d") and hasattr(encoder, "stochastic")):
        raise TypeError(
            f"encoder is a {type(encoder).__name__}; expected a spe.Encoder, which wraps a network "
            f"of your own: spe.Encoder(net, d, channels, stochastic={stochastic})"
        )
    if encoder.stochastic is not stochastic:
        raise ValueError(f"encoder.stochastic is {encoder.stochastic}; expected {stochastic}")
