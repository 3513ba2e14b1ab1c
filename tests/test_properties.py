"""Hypothesis looks for shapes and magnitudes at which the core stops being finite or exact.

Variances from 1e-12 to 1e12, means up to 1e6, 1 to 2000 classes, 1 to 128 dimensions, float32 and
float64. A gradient must be finite wherever the exact one, computed in float64 from the same
numbers, fits the dtype.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spe import Gaussian, add_support, log_posterior, multiply, product, prototypes
from spe import target_log_posterior as target_log_p

DTYPES = st.sampled_from([torch.float32, torch.float64])
SHAPES = st.sampled_from(
    # queries, classes, dimensions
    [(1, 1, 1), (1, 2, 1), (3, 1, 2), (1, 5, 2), (4, 7, 3), (2, 40, 17), (2, 3, 128), (1, 2000, 2)]
)
SEEDS = st.integers(0, 2**32 - 1)
STEADY = settings(max_examples=60, deadline=None, derandomize=True)


def extremes(
    n: int, d: int, generator: torch.Generator, dtype: torch.dtype, low: float, high: float
) -> Gaussian:
    """Variances log-uniform over 10^low to 10^high; means from 1e-6 to 1e6, half of them alike."""
    exponent = low + (high - low) * torch.rand(n, d, generator=generator, dtype=torch.float64)
    size = 10 ** (12 * torch.rand(n, d, generator=generator, dtype=torch.float64) - 6)
    sign = torch.randint(0, 2, (n, d), generator=generator) * 2 - 1
    mean = torch.where(torch.rand(n, d, generator=generator) < 0.5, sign * size, 1e6)
    return Gaussian(mean.to(dtype), (10**exponent).to(dtype))


@st.composite
def problems(draw: st.DrawFn) -> tuple[Gaussian, Gaussian, Tensor, Tensor]:
    """Query, prototypes, noise and targets."""
    n_query, n_class, d = draw(SHAPES)
    dtype = draw(DTYPES)
    low, high = draw(
        st.sampled_from([(-12, 12), (-12, -12), (12, 12), (-12, -6), (6, 12), (-1, 1)])
    )
    generator = torch.Generator().manual_seed(draw(SEEDS))
    query = extremes(n_query, d, generator, dtype, low, high)
    if draw(st.booleans()):
        query = Gaussian(query.mean, torch.zeros_like(query.var))
    low, high = draw(st.sampled_from([(-12, 12), (-12, -12), (12, 12), (-1, 1)]))
    classes = extremes(n_class, d, generator, dtype, low, high)
    noise = torch.tensor(10.0 ** draw(st.sampled_from([-12, -3, 0, 12])), dtype=dtype)
    targets = torch.randint(n_class, (n_query,), generator=generator)
    return query, classes, noise, targets


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


def gradients_are_finite_where_they_fit(function, *inputs: Tensor) -> None:
    """Run `function` in the inputs' dtype and in float64; compare which gradients are finite."""
    ours = leaves(*inputs)
    value = function(*ours)
    assert value.isfinite().all()
    value.mean().backward()
    exact = leaves(*(t.double() for t in inputs))
    function(*exact).mean().backward()
    limit = 0.01 * torch.finfo(inputs[0].dtype).max
    for mine, true in zip(ours, exact, strict=True):
        assert mine.grad is not None
        assert true.grad is not None
        assert true.grad.isfinite().all()  # float64 has room for all that is drawn here
        if true.grad.abs().max() < limit:
            assert mine.grad.isfinite().all()


@STEADY
@given(problems(), st.sampled_from(["sobol", "random"]), st.sampled_from([1, 5]))
def test_predictions_are_finite_and_normalised(problem, points: str, n_samples: int) -> None:
    query, classes, noise, _ = problem
    log_p = log_posterior(query, classes, noise, n_samples, points)
    assert log_p.shape == (len(query), len(classes))
    assert log_p.isfinite().all()
    # Log-probabilities may be as large as 1e25; the likely ones decide the sum.
    assert (log_p <= 1e-5).all()
    total = log_p.double().exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-4, rtol=0)


@STEADY
@given(problems())
def test_predictions_have_finite_gradients(problem) -> None:
    query, classes, noise, _ = problem

    def predict(m: Tensor, v: Tensor, cm: Tensor, cv: Tensor, n: Tensor) -> Tensor:
        return log_posterior(Gaussian(m, v), Gaussian(cm, cv), n, 4)

    gradients_are_finite_where_they_fit(
        predict, query.mean, query.var, classes.mean, classes.var, noise
    )


@pytest.mark.parametrize("estimator", ["intersection", "naive", "bound"])
@STEADY
@given(problem=problems(), seed=SEEDS)
def test_training_estimates_and_gradients_are_finite(estimator: str, problem, seed: int) -> None:
    query, classes, noise, targets = problem

    def estimate(m: Tensor, v: Tensor, cm: Tensor, cv: Tensor, n: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return target_log_p(
            Gaussian(m, v), Gaussian(cm, cv), n, targets, estimator, 2, "sobol", generator
        )

    gradients_are_finite_where_they_fit(
        estimate, query.mean, query.var, classes.mean, classes.var, noise
    )


@STEADY
@given(problems(), SEEDS)
def test_single_precision_agrees_with_double(problem, seed: int) -> None:
    """float32 gives float64's answer on the same numbers, up to its own rounding."""
    query, classes, noise, targets = problem
    query, classes, noise = query.to(torch.float32), classes.to(torch.float32), noise.float()
    for estimator in ("intersection", "naive", "bound"):
        low, high = (
            target_log_p(
                query.to(dtype),
                classes.to(dtype),
                noise.to(dtype),
                targets,
                estimator,
                2,
                "sobol",
                torch.Generator().manual_seed(seed),
            ).double()
            for dtype in (torch.float32, torch.float64)
        )
        scale = class_scale(query, classes, noise)
        assert ((low - high).abs() <= 1e-3 + 1e-5 * high.abs() + 4e-6 * scale).all(), estimator


def class_scale(query: Gaussian, classes: Gaussian, noise: Tensor) -> Tensor:
    """The largest exponent that is added and subtracted on the way, per query."""
    width = (classes.var + noise).double()
    gap = (query.mean.double()[:, None] - classes.mean.double()).square()
    reach = 40 * query.var.double()[:, None]
    return ((gap + reach) / width + width.log().abs()).sum(-1).amax(-1)


@st.composite
def supports(draw: st.DrawFn) -> tuple[Gaussian, Tensor, int, Tensor]:
    """Support, labels (unbalanced, some classes perhaps empty), number of classes, noise."""
    n_class, d = draw(st.sampled_from([(1, 1), (1, 128), (3, 2), (20, 5), (2000, 1)]))
    n = draw(st.sampled_from([1, 2, 9, 60]))
    generator = torch.Generator().manual_seed(draw(SEEDS))
    low, high = draw(st.sampled_from([(-12, 12), (-12, -12), (12, 12)]))
    support = extremes(n, d, generator, draw(DTYPES), low, high)
    noise = torch.tensor(10.0 ** draw(st.sampled_from([-12, 0, 12])), dtype=support.dtype)
    return support, torch.randint(n_class, (n,), generator=generator), n_class, noise


@STEADY
@given(supports())
def test_prototypes_are_finite_lie_among_their_examples_and_are_narrower(problem) -> None:
    support, labels, n_class, noise = problem
    out = prototypes(support, labels, noise, n_class)
    assert out.shape == (n_class, support.d)
    assert out.mean.isfinite().all()
    assert out.var.isfinite().all()
    assert (out.var > 0).all()
    for c in labels.unique().tolist():
        members = support.widen(noise)[labels == c]
        slack = 4 * torch.finfo(support.dtype).eps * members.mean.abs().amax(0)
        assert (out.mean[c] >= members.mean.amin(0) - slack).all()
        assert (out.mean[c] <= members.mean.amax(0) + slack).all()
        assert (out.var[c] <= members.var.amin(0)).all()


@STEADY
@given(supports())
def test_prototypes_have_finite_gradients(problem) -> None:
    support, labels, n_class, noise = problem

    def both(mean: Tensor, var: Tensor, noise: Tensor) -> Tensor:
        out = prototypes(Gaussian(mean, var), labels, noise, n_class)
        return torch.cat([out.mean, out.var.log()])

    gradients_are_finite_where_they_fit(both, support.mean, support.var, noise)


@STEADY
@given(supports(), SEEDS)
def test_a_stream_in_any_order_ends_where_the_whole_set_does(problem, seed: int) -> None:
    support, labels, n_class, noise = problem
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    whole = prototypes(support, labels, noise, n_class)
    cut = (len(order) + 1) // 2
    stream = prototypes(support[order[:cut]], labels[order[:cut]], noise, n_class)
    for some in order[cut:].split(7) if cut < len(order) else ():
        stream = add_support(stream, support[some], labels[some], noise)
    eps = torch.finfo(support.dtype).eps
    torch.testing.assert_close(stream.var, whole.var, rtol=200 * eps, atol=0)
    scale = support.mean.abs().max().item()
    torch.testing.assert_close(stream.mean, whole.mean, rtol=0, atol=200 * eps * scale)


@STEADY
@given(problems())
def test_products_are_finite_with_finite_gradients(problem) -> None:
    query, classes, noise, targets = problem
    other = classes.widen(noise)[targets]

    def two(m: Tensor, v: Tensor, n: Tensor, w: Tensor) -> Tensor:
        out, log_mass = multiply(Gaussian(m, v), Gaussian(n, w))
        return torch.cat([out.mean.flatten(), out.var.flatten(), log_mass])

    def whole(mean: Tensor, var: Tensor) -> Tensor:
        out = product(Gaussian(mean, var))
        return torch.cat([out.mean, out.var.log()])

    gradients_are_finite_where_they_fit(two, query.mean, query.var, other.mean, other.var)
    gradients_are_finite_where_they_fit(whole, classes.mean, classes.var)
