"""What chapters 4 and 5 claim about the class posterior and its estimators."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from exact import density, exact_posterior, grid, random_gaussians, within_confidence
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from spe import Gaussian, log_density, log_posterior, multiply, posterior, target_log_posterior
from spe.posterior import log_mean_exp, normal_points, sobol_points
from spe.prototypes import class_product

NOISE = 0.4
TARGETS = torch.tensor([0, 3, 3])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(d: int = 2) -> tuple[Gaussian, Gaussian]:
    """Three queries and five prototypes in float64; query variances below the classes'."""
    query = random_gaussians(3, d, seeded(1), spread=1.0)
    return Gaussian(query.mean, 0.5 * query.var), random_gaussians(5, d, seeded(2), spread=1.5)


def narrow_classes(n_class: int, seed: int) -> tuple[Gaussian, Gaussian]:
    """The trained case: queries have about five times the variance of a widened class."""
    g = seeded(seed)
    query = Gaussian(
        2 * torch.randn(5, 2, generator=g, dtype=torch.float64),
        0.3 + torch.rand(5, 2, generator=g, dtype=torch.float64),
    )
    mean = 2 * torch.randn(n_class, 2, generator=g, dtype=torch.float64)
    return query, Gaussian(mean, torch.full_like(mean, 0.05))


# The density that everything rests on


def broadcast(z: Tensor, classes: Gaussian) -> Tensor:
    return classes.log_prob(z[..., None, :])


@pytest.mark.parametrize("shape", [(4,), (1,), (2, 3), ()])
def test_the_class_densities_are_those_of_the_classes(shape: tuple[int, ...]) -> None:
    """Eq. 6, against plain broadcasting over points x classes x d."""
    classes = random_gaussians(5, 3, seeded())
    z = torch.randn(*shape, 3, generator=seeded(1), dtype=torch.float64)
    torch.testing.assert_close(log_density(z, classes), broadcast(z, classes))


def test_an_offset_moves_the_points() -> None:
    """Eq. 6."""
    classes, z = random_gaussians(5, 3, seeded()), random_gaussians(4, 3, seeded(1)).mean
    offset = torch.randn(6, 4, 3, generator=seeded(2), dtype=torch.float64)
    torch.testing.assert_close(log_density(z, classes, offset), broadcast(z + offset, classes))


def test_the_gradient_of_the_class_densities_is_right() -> None:
    """Eq. 6."""
    classes, z = random_gaussians(4, 2, seeded()), random_gaussians(3, 2, seeded(1)).mean
    offset = torch.randn(2, 3, 2, generator=seeded(2), dtype=torch.float64)
    inputs = tuple(t.requires_grad_() for t in (z, offset, classes.mean, classes.var))
    assert gradcheck(lambda z, o, m, v: log_density(z, Gaussian(m, v), o), inputs)


@pytest.mark.parametrize("distance", [1e2, 1e4, 1e6])
def test_differences_keep_the_digits_that_an_expanded_square_loses(distance: float) -> None:
    """Eq. 6 in float32 far from the origin, against float64 on the same numbers."""
    classes = Gaussian(distance + torch.arange(6.0).reshape(3, 2), torch.full((3, 2), 0.7))
    z = distance + torch.tensor([[0.5, 1.0], [2.0, 4.5]])
    exact = broadcast(z.double(), classes.to(torch.float64))
    torch.testing.assert_close(log_density(z, classes).double(), exact, rtol=1e-5, atol=1e-5)
    squares = z.square().sum(-1)[:, None] - 2 * z @ classes.mean.T + classes.mean.square().sum(-1)
    expanded = -0.5 * (squares / 0.7 + 2 * math.log(2 * math.pi * 0.7))
    if distance >= 1e4:
        assert (expanded.double() - exact).abs().max() > 1


def test_large_distances_keep_their_relative_precision() -> None:
    """Eq. 6 in float32 with means up to 1e6 and variances from 1e-12 to 1e12."""
    g = seeded()
    mean = 1e6 * torch.randn(20, 3, generator=g)
    var = 10 ** (24 * torch.rand(20, 3, generator=g) - 12)
    z = 1e6 * torch.randn(30, 3, generator=g)
    exact = broadcast(z.double(), Gaussian(mean.double(), var.double()))
    torch.testing.assert_close(
        log_density(z, Gaussian(mean, var)).double(), exact, rtol=2e-6, atol=1e-4
    )


# Prediction


@pytest.mark.parametrize("d", [1, 2])
def test_the_posterior_is_the_integral(d: int) -> None:
    """Eqs. 2 and 7: with many points the answer is that of a dense grid."""
    query, prototypes = problem(d)
    exact = exact_posterior(query, prototypes, NOISE)
    ours = log_posterior(query, prototypes, NOISE, n_samples=4096).exp()
    torch.testing.assert_close(ours, exact, atol=5e-4, rtol=0)


def test_the_default_is_close_to_the_integral() -> None:
    """Eq. 7 with 64 points."""
    query, prototypes = problem()
    exact = exact_posterior(query, prototypes, NOISE)
    ours = log_posterior(query, prototypes, NOISE).exp()
    torch.testing.assert_close(ours, exact, atol=0.01, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4, 1e12, 1e30])
@pytest.mark.parametrize("n", [1, 2, 64])
def test_what_is_lifted_before_a_mean_of_exponentials_changes_nothing(n: int, scale: float) -> None:
    x = -scale * torch.rand(n, 5, 3, generator=seeded())
    x.requires_grad_()
    plain = x.logsumexp(0) - math.log(n)
    ours = log_mean_exp(x)
    torch.testing.assert_close(ours, plain)
    expected, found = (torch.autograd.grad(value.sum(), x)[0] for value in (plain, ours))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(0), torch.ones(5, 3))


def test_random_points_are_unbiased_for_the_integral() -> None:
    """Eqs. 2 and 7: the paper's naive sampler, one sample at a time, over many draws."""
    query, prototypes = problem()
    generator = seeded(3)
    draws = torch.stack(
        [log_posterior(query, prototypes, NOISE, 5, "random", generator).exp() for _ in range(1500)]
    )
    assert within_confidence(draws, exact_posterior(query, prototypes, NOISE))


@pytest.mark.parametrize("points", ["sobol", "random"])
@pytest.mark.parametrize("n_class", [1, 2, 70])
def test_probabilities_sum_to_one(points: str, n_class: int) -> None:
    """Eq. 6 is normalised at every point, so Eq. 7 is."""
    query = random_gaussians(4, 3, seeded())
    log_p = log_posterior(query, random_gaussians(n_class, 3, seeded(1)), 0.1, 16, points, seeded())
    assert log_p.shape == (4, n_class)
    torch.testing.assert_close(log_p.logsumexp(-1), torch.zeros(4, dtype=torch.float64))


def test_a_certain_query_sees_the_softmax_itself() -> None:
    """Eq. 6: at zero variance nothing is left to average."""
    query, prototypes = problem()
    point = Gaussian(query.mean, torch.zeros_like(query.var))
    expected = broadcast(point.mean, prototypes.widen(NOISE)).softmax(-1)
    torch.testing.assert_close(log_posterior(point, prototypes, NOISE).exp(), expected)


def test_without_uncertainty_the_model_is_a_prototypical_network() -> None:
    """Eq. 7 for points and equally wide classes: squared distances over twice the variance."""
    query, prototypes = problem()
    point = Gaussian(query.mean, torch.zeros_like(query.var))
    classes = Gaussian(prototypes.mean, torch.full_like(prototypes.var, 0.3))
    distance = torch.cdist(query.mean, prototypes.mean).square()
    expected = (-distance / (2 * (0.3 + NOISE))).log_softmax(-1)
    torch.testing.assert_close(log_posterior(point, classes, NOISE), expected)
    for estimator in ("intersection", "naive", "bound"):
        ours = target_log_posterior(point, classes, NOISE, TARGETS, estimator)
        torch.testing.assert_close(ours, expected[torch.arange(3), TARGETS])


def test_the_noise_widens_the_classes_once() -> None:
    """Eqs. 6 and 7 use the hatted variance: noise and prototype variance add up."""
    query, prototypes = problem()
    wide = Gaussian(prototypes.mean, prototypes.var + NOISE)
    torch.testing.assert_close(
        log_posterior(query, prototypes, NOISE), log_posterior(query, wide, 0.0)
    )
    for estimator in ("intersection", "naive", "bound"):
        torch.testing.assert_close(
            target_log_posterior(query, prototypes, NOISE, TARGETS, estimator, generator=seeded()),
            target_log_posterior(query, wide, 0.0, TARGETS, estimator, generator=seeded()),
        )


def test_a_vaguer_query_gets_a_vaguer_answer() -> None:
    """Eq. 2: averaging over the embedding hedges."""
    prototypes = Gaussian(torch.tensor([[-1.0], [1.0]]), torch.full((2, 1), 0.05))
    var = torch.tensor([[1e-6], [0.1], [1.0], [100.0]])
    confidence = log_posterior(Gaussian(torch.full((4, 1), 0.9), var), prototypes, 0.1)[:, 1]
    assert (confidence.diff() < 0).all()
    assert abs(confidence[-1].exp().item() - 0.5) < 0.1


def test_reordering_queries_or_classes_reorders_the_answer() -> None:
    query, prototypes = problem()
    log_p = log_posterior(query, prototypes, NOISE)
    rows, columns = torch.tensor([2, 0, 1]), torch.tensor([4, 2, 0, 1, 3])
    shuffled = log_posterior(query[rows], prototypes[columns], NOISE)
    torch.testing.assert_close(shuffled, log_p[rows][:, columns])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [1e3, 1e6])
def test_shifting_the_space_changes_no_probability(dtype: torch.dtype, shift: float) -> None:
    """Eqs. 7 and 9: also in float32 at 1e6, where a sample's offset would be rounded away."""
    g = seeded()
    # Multiples of 1/16 are exact at 1e6 in float32, so both problems have the same differences.
    query = Gaussian(
        torch.randint(-32, 32, (4, 2), generator=g).to(dtype) / 16,
        torch.full((4, 2), 0.3).to(dtype),
    )
    prototypes = Gaussian(
        torch.randint(-32, 32, (5, 2), generator=g).to(dtype) / 16,
        torch.full((5, 2), 0.1).to(dtype),
    )
    moved = [Gaussian(x.mean + shift, x.var) for x in (query, prototypes)]
    tolerance = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(
        log_posterior(*moved, 0.2), log_posterior(query, prototypes, 0.2), **tolerance
    )
    targets = torch.tensor([0, 1, 2, 4])
    for estimator in ("intersection", "naive", "bound"):
        one, other = (
            target_log_posterior(*pair, 0.2, targets, estimator, 8, generator=seeded(1))
            for pair in ((query, prototypes), moved)
        )
        torch.testing.assert_close(one, other, **tolerance)


def test_many_queries_in_pieces_give_what_one_by_one_gives() -> None:
    """Queries are worked through in pieces; the cuts must not show."""
    query, prototypes = random_gaussians(700, 2, seeded()), random_gaussians(40, 2, seeded(1))
    whole = log_posterior(query, prototypes, 0.1)
    for i in (0, 203, 204, 205, 409, 699):
        torch.testing.assert_close(
            whole[i : i + 1], log_posterior(query[i : i + 1], prototypes, 0.1)
        )
    assert log_posterior(query[:0], prototypes, 0.1).shape == (0, 40)


def test_the_gradient_of_the_posterior_is_right() -> None:
    """Eq. 7, with respect to queries, prototypes and noise."""
    query, prototypes = problem()
    noise = torch.tensor(NOISE, dtype=torch.float64, requires_grad=True)
    inputs = (query.mean, query.var, prototypes.mean, prototypes.var, noise)
    for t in inputs:
        t.requires_grad_()
    for points in ("sobol", "random"):
        assert gradcheck(
            lambda qm, qv, pm, pv, n, points=points: log_posterior(
                Gaussian(qm, qv), Gaussian(pm, pv), n, 4, points, seeded()
            ),
            inputs,
        )


# The points


def test_the_fixed_set_gives_the_same_number_every_time() -> None:
    query, prototypes = problem()
    torch.manual_seed(1)
    first = log_posterior(query, prototypes, NOISE)
    torch.manual_seed(2)
    sobol_points.cache_clear()
    assert torch.equal(first, log_posterior(query, prototypes, NOISE))
    assert not torch.equal(
        *(log_posterior(query, prototypes, NOISE, 64, "random", seeded(i)) for i in (1, 2))
    )


def test_the_fixed_set_works_for_training_after_it_was_used_for_prediction() -> None:
    query, prototypes = problem()
    sobol_points.cache_clear()
    with torch.inference_mode():
        log_posterior(query, prototypes, NOISE, 16)
    mean = query.mean.clone().requires_grad_()
    log_posterior(Gaussian(mean, query.var), prototypes, NOISE, 16).sum().backward()
    assert mean.grad is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 2, 64])
def test_the_fixed_set_is_standard_normal_and_finite(d: int, dtype: torch.dtype) -> None:
    g = Gaussian(torch.zeros(1, d, dtype=dtype), torch.ones(1, d, dtype=dtype))
    for n in (1, 64, 1024):
        assert normal_points(g, n, "sobol", None, fresh=False).isfinite().all()
    points = normal_points(g, 1024, "sobol", None, fresh=False)
    assert points.dtype == dtype
    assert points.double().mean((0, 1)).abs().max() < 0.02
    assert (points.double().var((0, 1)) - 1).abs().max() < 0.06


def test_64_fixed_points_err_less_than_half_as_much_as_200_random_ones() -> None:
    """Eq. 7 in the trained case: why 64 is the default, and 32 is not."""
    errors: dict[str, list[Tensor]] = {"naive 200": [], "sobol 32": [], "sobol 64": []}
    for n_class in (5, 10, 20, 40):
        query, prototypes = narrow_classes(n_class, n_class)
        exact = exact_posterior(query, prototypes, 0.1, n=250)
        for seed in range(5):
            naive = log_posterior(query, prototypes, 0.1, 200, "random", seeded(seed))
            errors["naive 200"].append((naive.exp() - exact).abs().mean())
        for n in (32, 64):
            ours = log_posterior(query, prototypes, 0.1, n).exp()
            errors[f"sobol {n}"].append((ours - exact).abs().mean())
    mean = {name: torch.stack(values).mean().item() for name, values in errors.items()}
    assert mean["sobol 64"] <= 0.5 * mean["naive 200"] < mean["sobol 32"], mean


def test_a_fresh_scramble_is_unbiased() -> None:
    """Eq. 7: every scrambled point is uniform, however few there are."""
    query, prototypes = problem()
    exact = exact_posterior(query, prototypes, NOISE)[torch.arange(3), TARGETS]
    generator = seeded(5)
    for n in (1, 8):
        draws = torch.stack(
            [
                target_log_posterior(
                    query, prototypes, NOISE, TARGETS, "naive", n, "sobol", generator
                ).exp()
                for _ in range(1000)
            ]
        )
        assert within_confidence(draws, exact)


def test_a_fresh_scramble_varies_less_than_random_points() -> None:
    query, prototypes = problem()
    spread = {}
    for points in ("sobol", "random"):
        generator = seeded(6)
        draws = [
            target_log_posterior(
                query, prototypes, NOISE, TARGETS, "naive", 8, points, generator
            ).exp()
            for _ in range(400)
        ]
        spread[points] = torch.stack(draws).var(0)
    assert (spread["sobol"] < 0.5 * spread["random"]).all()


def test_each_query_gets_a_scramble_of_its_own() -> None:
    g = Gaussian(torch.zeros(3, 2), torch.ones(3, 2))
    points = normal_points(g, 4, "sobol", seeded(), fresh=True)
    assert points.shape == (4, 3, 2)
    assert not torch.equal(points[:, 0], points[:, 1])


# Training


@pytest.mark.parametrize("points", ["random", "sobol"])
@pytest.mark.parametrize("n_samples", [1, 4])
def test_the_intersection_estimate_is_unbiased(points: str, n_samples: int) -> None:
    """Eq. 9: one sample where query and target class overlap, over many draws."""
    query, prototypes = problem()
    exact = exact_posterior(query, prototypes, NOISE)[torch.arange(3), TARGETS]
    generator = seeded(7)
    draws = torch.stack(
        [
            target_log_posterior(
                query, prototypes, NOISE, TARGETS, "intersection", n_samples, points, generator
            ).exp()
            for _ in range(1500)
        ]
    )
    assert within_confidence(draws, exact)


@pytest.mark.parametrize("estimator", ["intersection", "naive"])
def test_many_samples_reach_the_integral(estimator: str) -> None:
    """Eqs. 7 and 9 are the same integral."""
    query, prototypes = problem()
    exact = exact_posterior(query, prototypes, NOISE)[torch.arange(3), TARGETS]
    ours = target_log_posterior(
        query, prototypes, NOISE, TARGETS, estimator, 4096, "sobol", seeded()
    )
    torch.testing.assert_close(ours.exp(), exact, atol=2e-3, rtol=0)


def test_the_bound_is_jensens_and_lies_below() -> None:
    """Eq. 9 with the mean taken inside the reciprocal, against a grid."""
    query, prototypes = problem()
    exact = exact_posterior(query, prototypes, NOISE)[torch.arange(3), TARGETS].log()
    bound = target_log_posterior(query, prototypes, NOISE, TARGETS, "bound")
    classes = prototypes.widen(NOISE)
    for i, y in enumerate(TARGETS.tolist()):
        both, log_mass = multiply(query[i], classes[y])
        z, cell = grid(both.mean - 8, both.mean + 8, 500)
        total = sum(density(z, classes.mean[c], classes.var[c]) for c in range(len(classes)))
        average = (density(z, both.mean, both.var) * total).sum() * cell
        assert math.isclose(bound[i].item(), (log_mass - average.log()).item(), rel_tol=1e-6)
    assert (bound < exact).all()
    assert (bound > exact - 1).all()


def test_logs_of_estimates_lie_below_and_more_samples_close_the_gap() -> None:
    """Eqs. 7 and 9: the log of an unbiased estimate is a lower bound on average."""
    query, prototypes = problem()
    exact = exact_posterior(query, prototypes, NOISE)[torch.arange(3), TARGETS].log()
    gap = {}
    for estimator in ("intersection", "naive"):
        for n in (1, 16):
            generator = seeded(8)
            draws = [
                target_log_posterior(
                    query, prototypes, NOISE, TARGETS, estimator, n, "random", generator
                )
                for _ in range(600)
            ]
            gap[estimator, n] = (exact - torch.stack(draws).mean(0)).mean().item()
    assert gap["intersection", 1] > gap["intersection", 16] > 0
    assert gap["naive", 1] > gap["naive", 16] > 0
    assert gap["naive", 1] > gap["intersection", 1]


def test_one_intersection_estimate_may_exceed_one() -> None:
    """Eq. 9: so it trains a model and never states a probability."""
    query, prototypes = narrow_classes(20, 0)
    nearest = torch.cdist(query.mean, prototypes.mean).argmin(1)
    draws = [
        target_log_posterior(query, prototypes, 0.2, nearest, generator=seeded(i))
        for i in range(50)
    ]
    assert torch.stack(draws).max() > 0


@pytest.mark.parametrize("points", ["random", "sobol"])
@pytest.mark.parametrize("estimator", ["intersection", "naive", "bound"])
def test_the_gradient_of_each_estimator_is_right(estimator: str, points: str) -> None:
    """Eqs. 7 and 9, with respect to queries, prototypes and noise."""
    query, prototypes = problem()
    noise = torch.tensor(NOISE, dtype=torch.float64, requires_grad=True)
    inputs = (query.mean, query.var, prototypes.mean, prototypes.var, noise)
    for t in inputs:
        t.requires_grad_()
    assert gradcheck(
        lambda qm, qv, pm, pv, n: target_log_posterior(
            Gaussian(qm, qv), Gaussian(pm, pv), n, TARGETS, estimator, 3, points, seeded()
        ),
        inputs,
    )


@pytest.mark.parametrize("estimator", ["intersection", "naive", "bound"])
def test_a_query_whose_variance_rounds_to_zero_trains_on(estimator: str) -> None:
    """Eq. 9: the trap that cost a run was 1 / 0, then NaN in the gradient."""
    query, prototypes = problem()
    var = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    noise = torch.tensor(NOISE, dtype=torch.float64, requires_grad=True)
    loss = target_log_posterior(
        Gaussian(query.mean, var), prototypes, noise, TARGETS, estimator, generator=seeded()
    ).sum()
    loss.backward()
    assert loss.isfinite()
    assert var.grad is not None
    assert var.grad.isfinite().all()
    assert noise.grad is not None
    assert noise.grad.isfinite()


def test_a_class_without_support_gets_no_probability_and_no_nan() -> None:
    query, prototypes = problem()
    empty = class_product(prototypes, torch.arange(5), 6)
    mean = query.mean.requires_grad_()
    log_p = log_posterior(Gaussian(mean, query.var), empty, NOISE)
    torch.testing.assert_close(log_p[:, :5], log_posterior(query, prototypes, NOISE))
    assert (log_p[:, 5].exp() < 1e-200).all()
    log_p.sum().backward()
    assert mean.grad is not None
    assert mean.grad.isfinite().all()


class Largest(TorchDispatchMode):
    """Watches every tensor that is made, in both passes, and keeps the largest size."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor) and tensor.numel():
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return out


@pytest.mark.parametrize("estimator", ["intersection", "naive", "prediction"])
def test_memory_does_not_grow_with_samples_queries_classes_and_dimensions(estimator: str) -> None:
    n_query, n_class, n_samples, d = 20, 30, 4, 50
    query = Gaussian(torch.randn(n_query, d).requires_grad_(), torch.ones(n_query, d))
    prototypes = Gaussian(torch.randn(n_class, d).requires_grad_(), torch.ones(n_class, d))
    sobol_points(n_samples, d, query.device)  # made once, and kept
    saved = 0

    def save(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel()
        return tensor

    with Largest() as largest, torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
        if estimator == "prediction":
            out = log_posterior(query, prototypes, 0.1, n_samples)
        else:
            targets = torch.zeros(n_query).long()
            out = target_log_posterior(query, prototypes, 0.1, targets, estimator, n_samples)
        out.sum().backward()
    assert largest.numel <= n_samples * n_query * max(n_class, d)
    assert saved < 0.5 * n_samples * n_query * n_class * d


def test_memory_does_not_grow_with_all_queries_at_once(monkeypatch) -> None:
    """Neither the points nor the answers of more than one piece lie in memory together."""
    monkeypatch.setattr(posterior, "CHUNK", 640)
    query = Gaussian(torch.randn(1000, 3), torch.ones(1000, 3))
    with Largest() as largest:
        log_posterior(query, CLASSES, 0.1, 64)
    assert largest.numel <= max(640, 1000 * len(CLASSES))


# The known mistake of public code, and errors

Posterior = Callable[[Gaussian, Gaussian, float], Tensor]


def claim_normalised_posterior(posterior: Posterior) -> None:
    query, prototypes = problem()
    p = posterior(query, prototypes, NOISE)
    torch.testing.assert_close(p.sum(-1), torch.ones(3, dtype=torch.float64), atol=0.02, rtol=0)
    torch.testing.assert_close(p, exact_posterior(query, prototypes, NOISE), atol=0.02, rtol=0)


def each_class_under_its_own_sample(query: Gaussian, prototypes: Gaussian, noise: float) -> Tensor:
    """Public code: class c's term of the denominator is taken at class c's own sample."""
    classes = prototypes.widen(noise)
    log_p = []
    z = [multiply(query, classes[c])[0].sample(500, seeded(c)) for c in range(len(classes))]
    own = torch.stack([classes[c].log_prob(z[c]) for c in range(len(classes))], -1)
    for c in range(len(classes)):
        log_mass = multiply(query, classes[c])[1]
        log_p.append((log_mass - own.logsumexp(-1)).logsumexp(0) - math.log(500))
    return torch.stack(log_p, -1).exp()


def averaged_logs(query: Gaussian, prototypes: Gaussian, noise: float) -> Tensor:
    z = query.sample(500, seeded())
    return broadcast(z, prototypes.widen(noise)).log_softmax(-1).mean(0).exp()


def noise_left_out(query: Gaussian, prototypes: Gaussian, noise: float) -> Tensor:
    return log_posterior(query, prototypes, 0.0).exp()


def mean_alone(query: Gaussian, prototypes: Gaussian, noise: float) -> Tensor:
    return broadcast(query.mean, prototypes.widen(noise)).softmax(-1)


def no_determinant(query: Gaussian, prototypes: Gaussian, noise: float) -> Tensor:
    z, classes = query.sample(500, seeded()), prototypes.widen(noise)
    squares = (z[..., None, :] - classes.mean).square() / classes.var
    return (-0.5 * squares.sum(-1)).softmax(-1).mean(0)


def test_the_posterior_keeps_its_claims() -> None:
    """Eq. 7."""
    claim_normalised_posterior(lambda q, p, noise: log_posterior(q, p, noise).exp())


@pytest.mark.parametrize(
    "mistake",
    [
        each_class_under_its_own_sample,
        averaged_logs,
        noise_left_out,
        mean_alone,
        no_determinant,
    ],
)
def test_a_known_mistake_breaks_them(mistake: Posterior) -> None:
    """Eq. 7: the claims above are sharp enough to tell."""
    with pytest.raises(AssertionError):
        claim_normalised_posterior(mistake)


@pytest.mark.parametrize("n_query", [1, 3])
@pytest.mark.parametrize("n_class", [1, 2])
def test_one_query_and_one_class_keep_their_dimensions(n_query: int, n_class: int) -> None:
    query = random_gaussians(n_query, 1, seeded())
    prototypes = random_gaussians(n_class, 1, seeded(1))
    assert log_posterior(query, prototypes, 0.1).shape == (n_query, n_class)
    for estimator in ("intersection", "naive", "bound"):
        targets = torch.zeros(n_query).long()
        out = target_log_posterior(query, prototypes, 0.1, targets, estimator)
        assert out.shape == (n_query,)


QUERY, CLASSES = Gaussian(torch.zeros(2, 3), torch.ones(2, 3)), Gaussian(*torch.ones(2, 4, 3))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((QUERY[0], CLASSES, 0.1), ValueError, r"query has shape \(3,\)"),
        ((QUERY, CLASSES[0], 0.1), ValueError, r"prototypes has shape \(3,\)"),
        ((QUERY, CLASSES[:0], 0.1), ValueError, r"prototypes has shape \(0, 3\); expected n > 0"),
        ((QUERY, CLASSES[:, :2], 0.1), ValueError, "query has 3 dimensions and prototypes 2"),
        ((QUERY, CLASSES.to(torch.float64), 0.1), ValueError, "prototypes are torch.float64"),
        ((QUERY, CLASSES.to("meta"), 0.1), ValueError, "prototypes are .* on meta"),
        ((QUERY, CLASSES, None), TypeError, "noise has type NoneType"),
        ((QUERY, CLASSES, torch.ones(3)), ValueError, r"noise has shape \(3,\)"),
        ((QUERY, CLASSES, 0.1, 0), ValueError, "n_samples=0"),
        ((QUERY, CLASSES, 0.1, 2.5), ValueError, "n_samples=2.5"),
        ((QUERY, CLASSES, 0.1, 8, "halton"), ValueError, "points='halton'; .*'sobol', 'random'"),
    ],
)
def test_bad_input_is_named(arguments: tuple, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        log_posterior(*arguments)


@pytest.mark.parametrize(
    ("targets", "estimator", "error", "says"),
    [
        (torch.zeros(3).long(), "naive", ValueError, r"targets has shape \(3,\)"),
        (torch.zeros(2), "naive", TypeError, "targets has type torch.float32"),
        (torch.zeros(2).long().to("meta"), "naive", ValueError, "targets .* on meta"),
        (torch.zeros(2).long(), "exact", ValueError, "estimator='exact'; expected one of"),
    ],
)
def test_bad_targets_are_named(
    targets: Tensor, estimator: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        target_log_posterior(QUERY, CLASSES, 0.1, targets, estimator)


@pytest.mark.parametrize(
    ("z", "says"),
    [
        (torch.zeros(2, 3), r"z is torch.float32 of shape \(2, 3\); expected .* \(..., 2\)"),
        (torch.zeros(2, 2).double(), "z is torch.float64 .* expected torch.float32"),
        (torch.tensor(0.0), "z is"),
    ],
)
def test_points_of_another_space_have_no_density(z: Tensor, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        log_density(z, Gaussian(torch.zeros(4, 2), torch.ones(4, 2)))
    with pytest.raises(ValueError, match="classes has shape"):
        log_density(torch.zeros(2, 2), Gaussian(torch.zeros(3, 4, 2), torch.ones(3, 4, 2)))


@pytest.mark.parametrize("shape", [(5, 3, 2), (2, 2), (5, 2, 3)])
def test_offsets_of_other_points_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"offset (is torch.float32 of|has) shape"):
        log_density(
            torch.zeros(2, 2), Gaussian(torch.zeros(4, 2), torch.ones(4, 2)), torch.zeros(shape)
        )


@pytest.mark.parametrize("noise", [-2.0, math.nan, math.inf])
def test_a_noise_that_is_no_variance_is_refused(noise: float) -> None:
    query, prototypes = problem()
    with pytest.raises(ValueError, match=f"noise={noise}; expected at least 0"):
        log_posterior(query, prototypes, noise)


def test_noise_may_be_a_number_of_numpy() -> None:
    query, prototypes = problem()
    expected = log_posterior(query, prototypes, 0.25, 16)
    for noise in (np.float32(0.25), np.float64(0.25)):
        assert torch.equal(log_posterior(query, prototypes, noise, 16), expected)
    ones = log_posterior(query, prototypes, 1, 16)
    assert torch.equal(log_posterior(query, prototypes, np.int32(1), 16), ones)
    with pytest.raises(TypeError, match="noise has type bool"):
        log_posterior(query, prototypes, True)
    with pytest.raises(TypeError, match="n_samples has type int64; expected int"):
        log_posterior(query, prototypes, 1, np.int64(16))
