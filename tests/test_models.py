"""What chapters 6 and 11 claim about the four models, and the mistakes of public versions."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from exact import density, grid
from torch import Tensor, nn

from spe import (
    ContrastiveEmbedding,
    Episode,
    Gaussian,
    HedgedInstanceEmbedding,
    OmniglotEncoder,
    Pairs,
    PrototypicalNetwork,
    StochasticPrototypes,
    prototypes,
    target_log_posterior,
)
from spe.evaluation import expected_match
from spe.models import (
    VAR_FLOOR,
    MatchHead,
    inverse_softplus,
    kl_to_standard,
    log_match,
    point_logits,
)


class Table(nn.Module):
    """An encoder that passes numbers through: the images are the raw outputs."""

    def __init__(self, d: int, stochastic: bool) -> None:
        super().__init__()
        self.d, self.stochastic = d, stochastic

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def as_images(mean: Tensor, var: Tensor | None = None) -> Tensor:
    """Images that a Table embeds with this mean and variance."""
    if var is None:
        return mean[:, :, None, None]
    raw = (var - VAR_FLOOR).expm1().log()
    return torch.cat([mean, raw], 1)[:, :, None, None]


def episode(d: int = 2, stochastic: bool = True, n_query: int = 4) -> Episode:
    """Three classes, two shots each; float64."""
    labels = torch.tensor([0, 0, 1, 1, 2, 2, *[i % 3 for i in range(n_query)]])
    mean = torch.randn(len(labels), d, generator=seeded(), dtype=torch.float64)
    var = 0.1 + torch.rand(len(labels), d, generator=seeded(1), dtype=torch.float64)
    return Episode(as_images(mean, var if stochastic else None), labels, 6, 3)


def pairs(n: int = 6, d: int = 2, stochastic: bool = True) -> tuple[Pairs, Gaussian, Gaussian]:
    mean = torch.randn(2 * n, d, generator=seeded(2), dtype=torch.float64)
    var = 0.1 + torch.rand(2 * n, d, generator=seeded(3), dtype=torch.float64)
    match = torch.arange(n) < n // 2
    g = Gaussian(mean, var)
    left = torch.arange(n)
    images = as_images(mean, var if stochastic else None)
    return Pairs(images, left, left + n, match), g[:n], g[n:]


# Stochastic prototypes


def test_an_embedding_is_a_mean_and_a_positive_variance() -> None:
    """Eq. 1: mean, and variance by a softplus with a floor."""
    model = StochasticPrototypes(Table(2, True), 1)
    raw = torch.tensor([[1.0, -2.0, 3.0, -200.0]])[:, :, None, None]
    g = model.embed(raw)
    assert g.mean.tolist() == [[1.0, -2.0]]
    assert math.isclose(g.var[0, 0].item(), math.log1p(math.exp(3.0)), rel_tol=1e-5)
    assert 0 < g.var[0, 1].item() < 1e-5


@pytest.mark.parametrize(
    ("n_support", "d", "start"),
    [(3500, 2, 35.0), (3500, 3, 162.45), (350, 2, 3.5298), (50, 2, 0.9741), (5, 2, 0.7185)],
)
def test_the_noise_starts_as_appendix_b_says(n_support: int, d: int, start: float) -> None:
    """Eq. 3's variance: counted per episode (the first three), or per class."""
    noise = StochasticPrototypes(Table(d, True), n_support).noise
    assert math.isclose(noise.item(), start, rel_tol=1e-3)


def test_the_loss_is_the_mean_over_queries_of_eq_9() -> None:
    """Eqs. 5 and 9, put together by hand."""
    batch = episode()
    model = StochasticPrototypes(Table(2, True), 3).double()
    g = model.embed(batch.images)
    classes = prototypes(g[:6], batch.labels[:6], model.noise)
    expected = target_log_posterior(
        g[6:], classes, model.noise, batch.labels[6:], generator=seeded(5)
    )
    torch.testing.assert_close(model.loss(batch, seeded(5)), -expected.mean())


def test_the_loss_teaches_network_and_noise() -> None:
    for estimator in ("intersection", "naive", "bound"):
        model = StochasticPrototypes(OmniglotEncoder(2), 3, estimator, 2, "sobol")
        batch = Episode(
            torch.randint(256, (9, 1, 28, 28), dtype=torch.uint8), torch.arange(9) % 3, 6, 3
        )
        model.loss(batch, seeded()).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
        assert model.gamma.grad != 0


@pytest.mark.parametrize("stochastic", [True, False])
def test_one_query_is_enough(stochastic: bool) -> None:
    batch = episode(stochastic=stochastic, n_query=1)
    encoder = Table(2, stochastic)
    model = StochasticPrototypes(encoder, 3) if stochastic else PrototypicalNetwork(encoder)
    assert model.double().loss(batch, seeded()).shape == ()


def test_training_pulls_classes_apart() -> None:
    """A linear encoder, four classes in a plane: both prototype models learn them."""
    g = seeded()
    labels = torch.arange(4).repeat(10)
    centre = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    x = centre[labels] + 0.4 * torch.randn(40, 2, generator=g)
    batch = Episode(x[:, :, None, None], labels, 20, 4)
    for kind in (StochasticPrototypes, PrototypicalNetwork):
        torch.manual_seed(0)
        stochastic = kind is StochasticPrototypes
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(2, 4 if stochastic else 2))
        encoder.d, encoder.stochastic = 2, stochastic  # type: ignore[assignment]
        model = kind(encoder, 20) if stochastic else kind(encoder)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        losses = []
        for _ in range(60):
            loss = model.loss(batch, g)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert sum(losses[-5:]) < 0.5 * sum(losses[:5]), kind


# Prototypical network

Logits = Callable[[Tensor, Tensor], Tensor]


def claim_squared_distance(logits: Logits) -> None:
    z = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    means = torch.tensor([[3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)
    expected = torch.tensor([[-25.0, -4.0]], dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(logits(z, means).softmax(-1), expected)


def test_a_prototypical_network_squares_its_distances() -> None:
    claim_squared_distance(point_logits)
    with pytest.raises(AssertionError):
        claim_squared_distance(lambda z, means: -torch.cdist(z, means))


def test_its_loss_is_cross_entropy_to_the_class_means() -> None:
    batch = episode(stochastic=False)
    z = batch.images.flatten(1)
    means = torch.stack([z[:6][batch.labels[:6] == c].mean(0) for c in range(3)])
    expected = F.cross_entropy(-torch.cdist(z[6:], means).square(), batch.labels[6:])
    torch.testing.assert_close(PrototypicalNetwork(Table(2, False)).loss(batch), expected)


def test_deterministic_models_embed_as_points() -> None:
    for model in (PrototypicalNetwork(Table(2, False)), ContrastiveEmbedding(Table(2, False))):
        g = model.embed(as_images(torch.ones(3, 2)))
        assert (g.var == 0).all()
        assert g.shape == (3, 2)


# Hedged instance embeddings

Head = Callable[[Tensor], Tensor]
SLOPE, OFFSET = 0.7, 0.4


def head() -> MatchHead:
    out = MatchHead().double()
    nn.init.constant_(out.raw_slope, inverse_softplus(SLOPE))
    nn.init.constant_(out.offset, OFFSET)
    return out


def claim_match_probability(logit: Head) -> None:
    """sigmoid(b - a |z - z'|): plain distance, falling, once the slope."""
    difference = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    expected = [1 / (1 + math.exp(SLOPE * r - OFFSET)) for r in (0.0, 5.0, 1.0)]
    p = logit(difference).sigmoid()
    torch.testing.assert_close(p, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    "mistake",
    [
        lambda x: OFFSET - SLOPE * x.square().sum(-1),  # squared distance
        lambda x: SLOPE * x.norm(dim=-1) + OFFSET,  # wrong sign
        lambda x: SLOPE * x.norm(dim=-1) - OFFSET,  # probability of a mismatch
        lambda x: OFFSET - 2 * SLOPE * x.norm(dim=-1),  # doubled slope
    ],
    ids=["squared", "sign", "mismatch", "doubled"],
)
def test_the_match_probability_falls_with_plain_distance(mistake: Head) -> None:
    claim_match_probability(head())
    with pytest.raises(AssertionError):
        claim_match_probability(mistake)


def test_the_slope_starts_at_one_and_stays_positive() -> None:
    fresh = MatchHead()
    assert math.isclose(F.softplus(fresh.raw_slope).item(), 1.0, rel_tol=1e-6)
    nn.init.constant_(fresh.raw_slope, -10.0)
    assert fresh(torch.tensor([[100.0]])) < fresh(torch.tensor([[0.0]]))


def test_two_equal_points_have_a_finite_gradient() -> None:
    difference = torch.zeros(1, 2, requires_grad=True)
    MatchHead()(difference).sum().backward()
    assert difference.grad is not None
    assert difference.grad.isfinite().all()


Averaged = Callable[[Tensor, Tensor], Tensor]


def claim_averaged_probabilities(log_probability: Averaged) -> None:
    """The mean over all sample pairs of the probability of what was seen, then the log."""
    logits = torch.randn(8, 8, 5, generator=seeded(), dtype=torch.float64) * 3
    match = torch.tensor([True, False, True, True, False])
    p = logits.sigmoid().mean((0, 1))
    expected = torch.where(match, p, 1 - p).log()
    torch.testing.assert_close(log_probability(logits, match), expected)


def averaged_logs(logits: Tensor, match: Tensor) -> Tensor:
    return F.logsigmoid(torch.where(match, logits, -logits)).mean((0, 1))


def averaged_logits(logits: Tensor, match: Tensor) -> Tensor:
    return F.logsigmoid(torch.where(match, logits, -logits).mean((0, 1)))


def summed_samples(logits: Tensor, match: Tensor) -> Tensor:
    return F.logsigmoid(torch.where(match, logits, -logits)).logsumexp((0, 1)) - math.log(8)


def paired_samples(logits: Tensor, match: Tensor) -> Tensor:
    return log_match(logits.diagonal().T, match)


def swapped(logits: Tensor, match: Tensor) -> Tensor:
    return log_match(logits, ~match)


@pytest.mark.parametrize(
    "mistake", [averaged_logs, averaged_logits, summed_samples, paired_samples, swapped]
)
def test_probabilities_are_averaged_over_all_pairs_and_not_their_logs(mistake: Averaged) -> None:
    claim_averaged_probabilities(log_match)
    with pytest.raises(AssertionError):
        claim_averaged_probabilities(mistake)


def test_a_hopeless_pair_has_a_finite_log_probability() -> None:
    logits = torch.full((2, 2, 1), -1e4, requires_grad=True)
    out = log_match(logits, torch.tensor([True]))
    out.sum().backward()
    assert math.isclose(out.item(), -1e4, rel_tol=1e-5)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_every_sample_of_one_side_meets_every_sample_of_the_other() -> None:
    """K samples a side give K x K differences a_i - b_j."""
    model = HedgedInstanceEmbedding(Table(2, True), n_samples=5).double()
    seen: list[Tensor] = []
    model.head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    model.loss(pairs()[0], seeded())
    (difference,) = seen
    assert difference.shape == (5, 5, 6, 2)
    steps = difference - difference[:1]  # a_i - a_0, whatever j
    torch.testing.assert_close(steps, steps[:, :1].expand_as(steps))
    steps = difference - difference[:, :1]  # b_0 - b_j, whatever i
    torch.testing.assert_close(steps, steps[:1].expand_as(steps))
    assert (difference.std((0, 1)) > 0.1).all()


KL = Callable[[Gaussian], Tensor]


def claim_divergence(kl: KL) -> None:
    """From the embedding to N(0, I), summed over dimensions, in nats."""
    _, g, _ = pairs(d=3)
    standard = torch.distributions.Normal(torch.zeros_like(g.mean), torch.ones_like(g.mean))
    ours = torch.distributions.Normal(g.mean, g.var.sqrt())
    expected = torch.distributions.kl_divergence(ours, standard).sum(-1)
    torch.testing.assert_close(kl(g), expected)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda g: -kl_to_standard(g),  # sign
        lambda g: kl_to_standard(g) / g.d,  # averaged over dimensions
        lambda g: 0.5 * (1 / g.var + g.mean.square() / g.var - 1 + g.var.log()).sum(-1),  # reversed
        lambda g: kl_to_standard(Gaussian(g.mean, g.var.square())),  # variance for deviation
        lambda g: kl_to_standard(Gaussian(g.mean, g.var.sqrt())),  # deviation for variance
        lambda g: 2 * kl_to_standard(g),  # the half left out
        lambda g: kl_to_standard(Gaussian(torch.zeros_like(g.mean), g.var)),  # no mean
    ],
    ids=["sign", "averaged", "reversed", "squared", "root", "half", "mean"],
)
def test_the_bottleneck_is_the_divergence_to_a_standard_normal(mistake: KL) -> None:
    claim_divergence(kl_to_standard)
    with pytest.raises(AssertionError):
        claim_divergence(mistake)


def test_beta_weighs_the_divergence_of_both_sides() -> None:
    batch, left, right = pairs()
    bare, weighed = (
        HedgedInstanceEmbedding(Table(2, True), beta=beta).double().loss(batch, seeded())
        for beta in (0.0, 0.1)
    )
    expected = 0.1 * (kl_to_standard(left) + kl_to_standard(right)).mean()
    torch.testing.assert_close(weighed - bare, expected)


def test_the_hib_loss_of_points_is_binary_cross_entropy() -> None:
    """With next to no variance all K x K pairs agree, and the sign of the loss shows."""
    batch, left, right = pairs()
    narrow = torch.full_like(left.mean, 1.1 * VAR_FLOOR)
    images = as_images(torch.cat([left.mean, right.mean]), torch.cat([narrow, narrow]))
    model = HedgedInstanceEmbedding(Table(2, True), beta=0.0).double()
    logits = 1 - (left.mean - right.mean).norm(dim=-1)
    expected = F.binary_cross_entropy_with_logits(logits, batch.match.double())
    ours = model.loss(batch._replace(images=images), seeded())
    torch.testing.assert_close(ours, expected, atol=3e-3, rtol=0)


@pytest.mark.parametrize("stochastic", [True, False])
def test_an_image_may_take_part_in_many_pairs(stochastic: bool) -> None:
    """All pairs of a few images cost as much as if each pair brought its own copies."""
    batch, _, _ = pairs(n=3, stochastic=stochastic)
    left, right = torch.combinations(torch.arange(6)).T
    shared = Pairs(batch.images, left, right, (left + right) % 2 == 0)
    n = len(left)
    copies = torch.cat([batch.images[left], batch.images[right]])
    apart = Pairs(copies, torch.arange(n), torch.arange(n, 2 * n), shared.match)
    model = (
        HedgedInstanceEmbedding(Table(2, True), n_samples=200)
        if stochastic
        else ContrastiveEmbedding(Table(2, False), form="soft")
    ).double()
    one, other = model.loss(shared, seeded()), model.loss(apart, seeded())
    torch.testing.assert_close(one, other, atol=0.02 if stochastic else 1e-12, rtol=0)


def test_expected_match_probabilities_agree_with_a_grid() -> None:
    _, left, right = pairs(n=3)
    ours = expected_match(slope=1.0, offset=1.0, n_points=4096)(left, right)
    assert ours.shape == (3, 3)
    for i in range(3):
        for j in range(3):
            mean, var = left.mean[i] - right.mean[j], left.var[i] + right.var[j]
            z, cell = grid(mean - 8 * var.sqrt(), mean + 8 * var.sqrt(), 300)
            expected = (density(z, mean, var) * (1 - z.norm(dim=-1)).sigmoid()).sum() * cell
            assert math.isclose(ours[i, j].item(), expected.item(), abs_tol=2e-3)


# Contrastive embeddings


def test_the_margin_form_pulls_matches_and_pushes_others_up_to_the_margin() -> None:
    left = torch.zeros(4, 2)
    right = torch.tensor([[3.0, 4.0], [0.3, 0.4], [3.0, 4.0], [0.3, 0.4]])
    match = torch.tensor([True, True, False, False])
    model = ContrastiveEmbedding(Table(2, False))
    images = as_images(torch.cat([left, right]))
    loss = model.loss(Pairs(images, torch.arange(4), torch.arange(4, 8), match))
    assert math.isclose(loss.item(), (25 + 0.25 + 0 + 0.25) / 4, rel_tol=1e-5)


def test_embeddings_are_not_squeezed_onto_a_circle() -> None:
    """Doubling every embedding doubles distances: nothing is normalised on the way."""
    batch, _, _ = pairs(stochastic=False)
    match = torch.ones_like(batch.match)
    model = ContrastiveEmbedding(Table(2, False))
    one, two = (
        model.loss(batch._replace(images=scale * batch.images, match=match)) for scale in (1, 2)
    )
    torch.testing.assert_close(two, 4 * one)


def test_the_soft_form_is_hib_without_variance_and_beta() -> None:
    batch, left, right = pairs(stochastic=False)
    model = ContrastiveEmbedding(Table(2, False), form="soft").double()
    logits = 1 - (left.mean - right.mean).norm(dim=-1)
    expected = F.binary_cross_entropy_with_logits(logits, batch.match.double())
    torch.testing.assert_close(model.loss(batch), expected)
    assert len(list(model.parameters())) == 2


# One interface, clear errors


def test_each_model_says_what_it_is_fed_with() -> None:
    assert StochasticPrototypes(Table(2, True), 1).kind == "episodes"
    assert PrototypicalNetwork(Table(2, False)).kind == "episodes"
    assert HedgedInstanceEmbedding(Table(2, True)).kind == "pairs"
    assert ContrastiveEmbedding(Table(2, False)).kind == "pairs"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: StochasticPrototypes(Table(2, False), 1), "encoder.stochastic is False"),
        (lambda: StochasticPrototypes(torch.nn.Linear(2, 4), 1), "encoder is a Linear; expected"),
        (lambda: PrototypicalNetwork(Table(2, True)), "encoder.stochastic is True"),
        (lambda: StochasticPrototypes(Table(2, True), 0), "n_support=0"),
        (lambda: StochasticPrototypes(Table(2, True), 1, "exact"), "estimator='exact'"),
        (lambda: StochasticPrototypes(Table(2, True), 1, points="grid"), "points='grid'"),
        (lambda: StochasticPrototypes(Table(2, True), 1, n_samples=0), "n_samples=0"),
        (lambda: HedgedInstanceEmbedding(Table(2, True), n_samples=0), "n_samples=0"),
        (lambda: HedgedInstanceEmbedding(Table(2, True), beta=-1.0), "beta=-1.0"),
        (lambda: ContrastiveEmbedding(Table(2, False), form="hard"), "form='hard'"),
        (lambda: ContrastiveEmbedding(Table(2, False), margin=0.0), "margin=0.0"),
    ],
)
def test_bad_settings_are_named(make: Callable[[], nn.Module], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        make()
