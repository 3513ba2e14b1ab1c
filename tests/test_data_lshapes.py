"""L shapes: the generative model, its best classifier and the pictures (paper, section 4.1)."""

import math

import pytest
import torch

from spe.data import lshape_set, lshapes
from spe.data.lshapes import Coordinates


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clean(orientation: float, hue: float, hue_noise: float = 0.0, leg: float = 1.0) -> Coordinates:
    return Coordinates(*(torch.tensor([float(x)]) for x in (orientation, hue, hue_noise, leg)))


def test_the_best_rule_is_right_87_percent_of_the_time():
    one_axis = 0.5 * (1 + math.erf(1.5 / math.sqrt(2)))  # the border is 1.5 deviations away
    assert lshapes.bayes_accuracy() == pytest.approx(one_axis**2, abs=1e-4)
    assert round(100 * lshapes.bayes_accuracy()) == 87


def test_the_best_rule_reaches_that_accuracy_on_drawn_images():
    drawn = lshapes.sample_coordinates(50_000, generator())
    guess = lshapes.bayes_posterior(drawn.orientation, drawn.hue).argmax(-1)
    accuracy = (guess == torch.arange(4)[:, None]).double().mean()
    assert abs(accuracy - lshapes.bayes_accuracy()) < 0.004


def test_the_posterior_is_even_between_two_centres_and_sure_beyond_them():
    posterior = lshapes.bayes_posterior(torch.tensor([135.0, 60.0]), torch.tensor([135.0, 60.0]))
    torch.testing.assert_close(posterior[0], torch.full((4,), 0.25))
    assert posterior[1, 0] > 0.99


def test_a_full_turn_changes_nothing():
    angle = torch.linspace(-400, 400, 33, dtype=torch.float64)
    once = lshapes.class_log_density(angle, angle.flip(0))
    torch.testing.assert_close(lshapes.class_log_density(angle + 360, angle.flip(0) - 720), once)


def test_class_densities_integrate_to_one():
    angle = torch.arange(0.0, 360.0, 2.0, dtype=torch.float64)
    density = lshapes.class_log_density(*torch.meshgrid(angle, angle, indexing="ij")).exp()
    torch.testing.assert_close(density.sum((0, 1)) * 4.0, torch.ones(4, dtype=torch.float64))


def test_classes_are_gaussians_around_their_centres():
    drawn = lshapes.sample_coordinates(20_000, generator())
    for axis, values in enumerate([drawn.orientation, drawn.hue]):
        centre = torch.tensor(lshapes.CLASSES)[:, axis]
        assert (values.mean(1) - centre).abs().max() < 1.0
        assert (values.std(1) - 30.0).abs().max() < 1.0


@pytest.mark.parametrize(("corruption", "both"), [("joint", 0.15), ("independent", 0.15**2)])
def test_15_percent_are_corrupted_together_or_independently(corruption, both):
    drawn = lshapes.sample_coordinates(20_000, generator(), corruption=corruption)
    noisy, short = drawn.hue_noise > 0, drawn.leg < 1
    assert abs(noisy.double().mean() - 0.15) < 0.005
    assert abs(short.double().mean() - 0.15) < 0.005
    assert abs((noisy & short).double().mean() - both) < 0.005
    assert drawn.hue_noise[noisy].aminmax() == pytest.approx((18, 54), abs=0.1)
    assert drawn.leg[short].aminmax() == pytest.approx((0.10, 0.98), abs=0.002)


def test_a_test_set_has_no_corruption():
    drawn = lshapes.sample_coordinates(1000, generator(), corrupted=0.0)
    assert not drawn.hue_noise.any()
    assert (drawn.leg == 1).all()


def test_a_pool_keeps_each_image_beside_its_coordinates():
    data, at = lshape_set(30, generator(), corrupted=0.0)
    assert data.image_shape == (3, 64, 64)
    assert data.counts.tolist() == [30] * 4
    assert at.orientation.shape == (4, 30)
    images, _ = data.take(*data.every_item())
    torch.testing.assert_close(images.view(4, 30, 3, 64, 64), lshapes.render(at))


def test_a_quarter_turn_of_the_shape_is_a_quarter_turn_of_the_picture():
    pictures = [lshapes.render(clean(angle, 90))[0] for angle in (0, 90, 180, 270)]
    for k, picture in enumerate(pictures):
        difference = (picture.int() - pictures[0].rot90(k, (1, 2)).int()).abs()
        assert difference.max() <= 1
        assert k == 0 or not torch.equal(picture, pictures[0])


def test_upright_the_shape_is_the_letter_l():
    ink = lshapes.render(clean(0, 90))[0].float().sum(0)
    top, bottom = ink[:32].sum(), ink[32:].sum()
    left, right = ink[:, :32].sum(), ink[:, 32:].sum()
    assert left > right
    assert bottom > top


def test_edges_are_anti_aliased_and_the_area_is_kept_at_any_angle():
    area = lshapes.THICKNESS * (lshapes.THICKNESS + lshapes.LONG_LEG + lshapes.SHORT_LEG)
    turned = Coordinates(
        torch.arange(0.0, 360.0, 15.0), torch.zeros(24), torch.zeros(24), torch.ones(24)
    )
    alpha = lshapes.render(turned, alpha=True)[:, 3].float() / 255
    torch.testing.assert_close(alpha.sum((1, 2)), torch.full((24,), area), rtol=0.01, atol=0.0)
    assert ((alpha > 0.1) & (alpha < 0.9)).any()
    border = torch.cat([alpha[:, 0], alpha[:, -1], alpha[:, :, 0], alpha[:, :, -1]], dim=1)
    assert not border.any()  # fits at any angle


def test_colour_follows_the_hue_at_constant_saturation_and_value():
    inside = [lshapes.render(clean(0, hue))[0, :, 50, 20].tolist() for hue in (0, 120, 180, 240)]
    high, low = round(255 * 0.95), round(255 * 0.95 * 0.15)
    assert inside == [[high, low, low], [low, high, low], [low, high, high], [low, low, high]]


def test_hue_noise_scatters_the_colour_inside_the_shape_only():
    plain = lshapes.render(clean(90, 180))[0]
    noisy = lshapes.render(clean(90, 180, hue_noise=40), generator())[0]
    outside = plain.sum(0) == 0
    assert not noisy[:, outside].any()
    assert noisy[0][plain[1] > 200].float().std() > 10
    assert plain[0][plain[1] > 200].float().std() < 5


def test_shorter_legs_leave_less_and_less_of_the_shape():
    areas = [
        int((lshapes.render(clean(90, 90, leg=leg))[0].sum(0) > 0).sum()) for leg in (1, 0.5, 0.1)
    ]
    assert areas == sorted(areas, reverse=True)
    assert areas[2] > lshapes.THICKNESS**2


def test_the_figure_helpers_span_what_the_paper_shows():
    samples, likelihood = lshapes.class_samples(5)
    assert samples.orientation.shape == likelihood.shape == (4, 5, 5)
    assert samples.orientation[0, :, 0].tolist() == [30, 60, 90, 120, 150]
    assert samples.hue[1, 0].tolist() == [120, 150, 180, 210, 240]
    density = lshapes.class_log_density(samples.orientation, samples.hue).exp()
    own = torch.stack([density[i, ..., i] for i in range(4)])
    torch.testing.assert_close(likelihood, own / own[:, 2:3, 2:3], rtol=1e-3, atol=0.0)

    grid = lshapes.interpolation_grid(5)
    corners = [
        (grid.orientation[i, j].item(), grid.hue[i, j].item()) for i in (0, 4) for j in (0, 4)
    ]
    assert corners == list(lshapes.CLASSES)

    noisy = lshapes.graded("hue_noise", [0, 20, 40], repeats=2)
    assert noisy.hue_noise[:, 0, 0].tolist() == [0, 20, 40]
    assert (noisy.leg == 1).all()
    short = lshapes.graded("leg", [1.0, 0.5])
    assert lshapes.render(short).shape == (2, 4, 1, 3, 64, 64)


def test_a_seed_gives_the_same_pool_again():
    first, second = (lshape_set(8, generator(1), corrupted=0.5)[0].tiles for _ in range(2))
    assert torch.equal(first, second)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="corruption"):
        lshape_set(2, corruption="both")
    with pytest.raises(ValueError, match="corrupted"):
        lshape_set(2, corrupted=15)
    with pytest.raises(ValueError, match="n_per_class"):
        lshape_set(0)
    with pytest.raises(ValueError, match="factor"):
        lshapes.graded("size", [1.0])


def test_a_pool_knows_its_smallest_class():
    images, _ = lshape_set(3, generator())
    assert images.smallest_class == int(images.counts.min()) == 3


def test_coordinates_are_the_class_centres_plus_the_first_numbers_of_the_stream():
    coordinates = lshapes.sample_coordinates(3, generator())
    centres = torch.tensor(lshapes.CLASSES)
    z = torch.randn(2, 4, 3, generator=generator())
    assert torch.equal(coordinates.orientation, centres[:, :1] + lshapes.STD * z[0])
    assert torch.equal(coordinates.hue, centres[:, 1:] + lshapes.STD * z[1])
