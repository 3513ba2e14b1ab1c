"""What chapter 2 claims about Gaussians: densities, samples and products."""

import math

import pytest
import torch
from exact import density, grid, random_gaussians, within_confidence
from torch.autograd import gradcheck

from spe import Gaussian, multiply, product


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_density_is_that_of_independent_normals() -> None:
    """Eq. 1."""
    g = random_gaussians(5, 3, seeded())
    z = torch.randn(7, 5, 3, generator=seeded(1), dtype=torch.float64)
    expected = torch.distributions.Normal(g.mean, g.var.sqrt()).log_prob(z).sum(-1)
    torch.testing.assert_close(g.log_prob(z), expected)


def test_the_density_integrates_to_one() -> None:
    """Eq. 1."""
    g = random_gaussians(1, 2, seeded())
    z, cell = grid(g.mean[0] - 9, g.mean[0] + 9, 300)
    assert math.isclose(g.log_prob(z).exp().sum().item() * cell, 1.0, rel_tol=1e-9)


def test_samples_have_the_mean_and_the_variance_asked_for() -> None:
    """Eq. 1."""
    g = random_gaussians(3, 2, seeded())
    z = g.sample(40_000, seeded(1))
    assert z.shape == (40_000, 3, 2)
    assert within_confidence(z, g.mean)
    assert within_confidence((z - g.mean).square(), g.var)


def test_the_generator_alone_decides_the_sample() -> None:
    g = random_gaussians(3, 2, seeded())
    torch.manual_seed(0)
    first = g.sample(4, seeded(7))
    torch.manual_seed(99)
    assert torch.equal(first, g.sample(4, seeded(7)))
    assert not torch.equal(first, g.sample(4, seeded(8)))


def test_a_sample_moves_with_mean_and_variance() -> None:
    mean = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    var = torch.full((2, 3), 0.7, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda m, v: Gaussian(m, v).sample(3, seeded()), (mean, var))


def test_widening_adds_the_noise_to_every_variance() -> None:
    """Eq. 3: the sum of two independent Gaussians has the sum of their variances."""
    g = random_gaussians(1, 2, seeded())
    assert torch.equal(g.widen(0.5).mean, g.mean)
    torch.testing.assert_close(g.widen(0.5).var, g.var + 0.5)
    noise = 0.5**0.5 * torch.randn(60_000, 1, 2, generator=seeded(2), dtype=torch.float64)
    rho = g.sample(60_000, seeded(1)) + noise
    assert within_confidence((rho - g.mean).square(), g.widen(0.5).var)


def test_the_product_of_a_set_is_proportional_to_the_product_of_densities() -> None:
    """Eqs. 4 and 5, against a normalised product on a grid."""
    factors = random_gaussians(4, 2, seeded(3), spread=0.7)
    z, cell = grid(factors.mean.amin(0) - 4, factors.mean.amax(0) + 4, 400)
    raw = torch.stack([density(z, f.mean, f.var) for f in (factors[i] for i in range(4))]).prod(0)
    normalised = raw / (raw.sum() * cell)
    torch.testing.assert_close(product(factors).log_prob(z).exp(), normalised, atol=1e-9, rtol=1e-6)


def test_precisions_add_and_weigh_the_means() -> None:
    """Eq. 5."""
    factors = random_gaussians(6, 3, seeded())
    var = 1 / (1 / factors.var).sum(0)
    out = product(factors)
    torch.testing.assert_close(out.var, var)
    torch.testing.assert_close(out.mean, var * (factors.mean / factors.var).sum(0))


@pytest.mark.parametrize("dim", [0, 1, -3, -2])
def test_a_product_may_run_along_any_leading_dimension(dim: int) -> None:
    g = Gaussian(torch.randn(3, 4, 2, generator=seeded()), torch.rand(3, 4, 2) + 0.1)
    axis = dim % 3
    whole = product(g, dim)
    for i in range(whole.shape[0]):
        one = product(g[:, i] if axis == 0 else g[i])
        torch.testing.assert_close(whole.mean[i], one.mean)
        torch.testing.assert_close(whole.var[i], one.var)


def test_a_product_does_not_care_about_order_or_grouping() -> None:
    """Eq. 4."""
    g = random_gaussians(6, 2, seeded())
    whole = product(g)
    shuffled = product(g[torch.randperm(6, generator=seeded(1))])
    halves = [product(g[:3]), product(g[3:])]
    nested = product(
        Gaussian(torch.stack([h.mean for h in halves]), torch.stack([h.var for h in halves]))
    )
    for other in (shuffled, nested):
        torch.testing.assert_close(other.mean, whole.mean)
        torch.testing.assert_close(other.var, whole.var)


def test_a_product_keeps_its_digits_far_from_the_origin() -> None:
    mean = torch.tensor([[1e6], [1e6 + 1]])
    out = product(Gaussian(mean, torch.tensor([[1e-12], [1e12]])))
    assert out.mean.item() == 1e6
    assert math.isclose(out.var.item(), 1e-12, rel_tol=1e-6)


def test_a_point_among_the_factors_decides_the_product() -> None:
    g = Gaussian(torch.tensor([[1.0], [5.0]]), torch.tensor([[0.0], [2.0]]))
    out = product(g)
    assert out.mean.item() == 1.0
    assert out.var.item() < 1e-30


def test_the_gradient_of_a_product_is_right() -> None:
    """Eq. 5."""
    g = random_gaussians(4, 2, seeded())
    inputs = (g.mean.requires_grad_(), g.var.requires_grad_())

    def both(mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        out = product(Gaussian(mean, var))
        return torch.cat([out.mean, out.var])

    assert gradcheck(both, inputs)


def test_two_densities_multiply_to_a_third_times_a_constant() -> None:
    """Eq. 8, at every point of a grid."""
    a, b = random_gaussians(2, 2, seeded())[0], random_gaussians(2, 2, seeded(5))[1]
    third, log_mass = multiply(a, b)
    z, cell = grid(torch.tensor([-9.0, -9.0]), torch.tensor([9.0, 9.0]), 300)
    left = density(z, a.mean, a.var) * density(z, b.mean, b.var)
    right = density(z, third.mean, third.var) * log_mass.exp()
    torch.testing.assert_close(left, right, atol=1e-12, rtol=1e-9)
    assert math.isclose(left.sum().item() * cell, log_mass.exp().item(), rel_tol=1e-6)


def test_a_product_of_two_agrees_with_a_product_of_a_set() -> None:
    """Eqs. 5 and 8."""
    a, b = random_gaussians(3, 4, seeded()), random_gaussians(3, 4, seeded(1))
    pair = Gaussian(torch.stack([a.mean, b.mean]), torch.stack([a.var, b.var]))
    one, other = multiply(a, b)[0], product(pair)
    torch.testing.assert_close(one.mean, other.mean)
    torch.testing.assert_close(one.var, other.var)


@pytest.mark.parametrize("narrow_first", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_either_factor_may_vanish(narrow_first: bool, dtype: torch.dtype) -> None:
    """Eq. 8 where one variance is 0 (the other trap: 1 / variance)."""
    point = Gaussian(torch.tensor([3.0], dtype=dtype), torch.tensor([0.0], dtype=dtype))
    wide = Gaussian(torch.tensor([1.0], dtype=dtype), torch.tensor([2.0], dtype=dtype))
    out, log_mass = multiply(point, wide) if narrow_first else multiply(wide, point)
    assert (out.mean.item(), out.var.item()) == (3.0, 0.0)
    torch.testing.assert_close(log_mass, wide.log_prob(point.mean))


def test_a_narrow_factor_is_not_rounded_away_by_a_distant_wide_one() -> None:
    """Eq. 8 in float32: the product of a narrow and a wide factor lies on the narrow one."""
    narrow = Gaussian(torch.tensor([0.3]), torch.tensor([1e-12]))
    wide = Gaussian(torch.tensor([1e6]), torch.tensor([1e12]))
    for pair in ((narrow, wide), (wide, narrow)):
        assert abs(multiply(*pair)[0].mean.item() - narrow.mean.item()) < 1e-6


def test_the_gradient_of_a_product_of_two_is_right() -> None:
    """Eq. 8."""
    a, b = random_gaussians(3, 2, seeded()), random_gaussians(3, 2, seeded(1))
    inputs = tuple(t.requires_grad_() for t in (a.mean, a.var, b.mean, b.var))

    def all_of_it(m: torch.Tensor, v: torch.Tensor, n: torch.Tensor, w: torch.Tensor):
        out, log_mass = multiply(Gaussian(m, v), Gaussian(n, w))
        return out.mean, out.var, log_mass

    assert gradcheck(all_of_it, inputs)


def test_a_batch_can_be_indexed_detached_and_moved() -> None:
    g = Gaussian(torch.randn(4, 3), torch.rand(4, 3).requires_grad_())
    assert (g.shape, g.d, len(g), g[1:].shape) == ((4, 3), 3, 4, (3, 3))
    assert not g.detach().var.requires_grad
    assert g.to(torch.float64).dtype == torch.float64
    assert g.to("meta").device.type == "meta"


@pytest.mark.parametrize(
    ("mean", "var", "error", "says"),
    [
        (torch.zeros(2, 3), torch.ones(3, 2), ValueError, r"mean has shape \(2, 3\) and var"),
        (torch.tensor(0.0), torch.tensor(1.0), ValueError, "expected the same shape"),
        (torch.zeros(2), torch.ones(2, dtype=torch.float64), ValueError, "dtype and device"),
        (torch.zeros(2), torch.ones(2, device="meta"), ValueError, "dtype and device"),
        (torch.zeros(2), torch.ones(2, dtype=torch.long), TypeError, "var has type torch.int64"),
        ([0.0], torch.ones(1), TypeError, "mean has type list"),
    ],
)
def test_what_is_no_gaussian_is_refused(mean, var, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Gaussian(mean, var)


@pytest.mark.parametrize("dim", [1, -1, 2, -3])
def test_a_product_over_the_dimensions_themselves_is_refused(dim: int) -> None:
    with pytest.raises(ValueError, match=f"dim={dim}"):
        product(Gaussian(torch.zeros(2, 3), torch.ones(2, 3)), dim)
