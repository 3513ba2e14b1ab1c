"""L shapes that differ in orientation and colour (paper, section 4.1, Appendix A.2; chapter 7).

Each picture is made from four numbers that are kept beside it: the generative coordinates.
They are the ground truth that an embedding can be compared with, and because the model that
draws them is known, so is the best rule that any classifier could follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spe.checks import check_count, check_option
from spe.data.imageset import ImageSet

SIZE = 64  # pixels
CHUNK = 256  # images drawn at once, to bound the memory
CENTRES = (90.0, 180.0)  # class centres on both circles, degrees
STD = 30.0  # of either coordinate within a class, degrees
CORRUPTED = 0.15  # part of the training images
HUE_NOISE = (18.0, 54.0)  # range of the noise's standard deviation, degrees
LEG = (0.10, 0.98)  # range of a shortened leg, of its full length
SATURATION, VALUE = 0.85, 0.95
THICKNESS, LONG_LEG, SHORT_LEG = 10.0, 34.0, 22.0  # pixels; legs count from the corner block
CLASSES = tuple((orientation, hue) for orientation in CENTRES for hue in CENTRES)
NAMES = tuple(f"orientation {orientation:.0f}°, hue {hue:.0f}°" for orientation, hue in CLASSES)


class Coordinates(NamedTuple):
    """What a picture is made from; four float tensors of one shape.

    orientation: degrees, counter-clockwise; at 0 the letter L stands upright.
    hue: degrees on the colour wheel.
    hue_noise: standard deviation of the hue from pixel to pixel, degrees; 0 is none.
    leg: length of both legs; 1 is full length, near 0 only the corner block is left.
    """

    orientation: Tensor
    hue: Tensor
    hue_noise: Tensor
    leg: Tensor


# --- The generative model and its best classifier -------------------------------------------


def sample_coordinates(
    n_per_class: int,
    generator: torch.Generator | None = None,
    corrupted: float = CORRUPTED,
    corruption: str = "joint",
) -> Coordinates:
    """Draw coordinates (4, n_per_class), one row a class, in the order of CLASSES.

    A part `corrupted` of the images get hue noise, and shorter legs. The paper's text leaves
    open whether these come together: "joint" gives both to the same images, "independent"
    draws twice, so that most corrupted images have only one of them.
    """
    check_count("n_per_class", n_per_class)
    check_option("corruption", corruption, ("joint", "independent"))
    if not 0.0 <= corrupted <= 1.0:
        raise ValueError(f"corrupted: expected a part from 0 to 1, got {corrupted}")
    device = generator.device if generator is not None else "cpu"
    shape = (len(CLASSES), n_per_class)
    # CLASSES, made on the device: to copy them there would wait for it.
    axis = torch.linspace(*CENTRES, 2, device=device)
    centres = torch.cartesian_prod(axis, axis)  # (4, 2)
    z = torch.randn(2, *shape, generator=generator, device=device)
    u = torch.rand(4, *shape, generator=generator, device=device)
    noisy = u[0] < corrupted
    short = noisy if corruption == "joint" else u[1] < corrupted
    hue_noise = HUE_NOISE[0] + (HUE_NOISE[1] - HUE_NOISE[0]) * u[2]
    leg = LEG[0] + (LEG[1] - LEG[0]) * u[3]
    return Coordinates(
        orientation=centres[:, :1] + STD * z[0],
        hue=centres[:, 1:] + STD * z[1],
        hue_noise=hue_noise * noisy,
        leg=torch.where(short, leg, 1.0),
    )


def class_log_density(orientation: Tensor, hue: Tensor) -> Tensor:
    """log p(orientation, hue | class), (..., 4): an isotropic Gaussian wrapped on two circles."""
    centres = torch.tensor(CLASSES, dtype=orientation.dtype, device=orientation.device)
    offset = torch.stack([orientation, hue], dim=-1).unsqueeze(-2) - centres  # (..., 4, 2)
    turns = 360.0 * torch.arange(-2, 3, dtype=offset.dtype, device=offset.device)
    z = ((offset.remainder(360.0)).unsqueeze(-1) + turns) / STD  # (..., 4, 2, turns)
    one = torch.logsumexp(-0.5 * z.square(), dim=-1) - math.log(STD * math.sqrt(2 * math.pi))
    return one.sum(-1)


def bayes_posterior(orientation: Tensor, hue: Tensor) -> Tensor:
    """p(class | orientation, hue), (..., 4), for equal priors: the Bayes-optimal rule."""
    return class_log_density(orientation, hue).softmax(-1)


def bayes_accuracy() -> float:
    """How often the Bayes-optimal rule is right: the integral of max_y p(x, y) over both circles.

    Computed on a grid of one degree. About 87 %, the paper's ceiling for any classifier.
    """
    angle = torch.arange(0.5, 360.0, 1.0, dtype=torch.float64)
    orientation, hue = torch.meshgrid(angle, angle, indexing="ij")
    best = class_log_density(orientation, hue).amax(-1).exp() / len(CLASSES)
    return float(best.sum())


# --- Pictures --------------------------------------------------------------------------------


def render(
    coordinates: Coordinates, generator: torch.Generator | None = None, alpha: bool = False
) -> Tensor:
    """Draw coordinates of any shape: uint8 (…, 3, 64, 64), on the coordinates' device.

    The background is black: zero, as a convolution's padding is, so an image has no frame.
    For figures, `alpha` adds a fourth channel that is clear outside the shape, which suits a
    light page and a dark one.
    """
    shape = coordinates.orientation.shape
    parts = zip(*(c.reshape(-1).split(CHUNK) for c in coordinates), strict=True)
    drawn = [_draw(Coordinates(*part), generator, alpha) for part in parts]
    return torch.cat(drawn).view(*shape, 3 + alpha, SIZE, SIZE)


def _draw(at: Coordinates, generator: torch.Generator | None, alpha: bool) -> Tensor:
    coverage = _coverage(at.orientation, at.leg)  # (n, 64, 64)
    noise = torch.randn(coverage.shape, generator=generator, device=coverage.device)
    hue = at.hue[:, None, None] + at.hue_noise[:, None, None] * noise
    colour, coverage = _hue_to_rgb(hue), coverage.unsqueeze(1)  # (n, 3, 64, 64), (n, 1, 64, 64)
    picture = torch.cat([colour, coverage], dim=1) if alpha else colour * coverage
    return (255.0 * picture).round().to(torch.uint8)


def _coverage(orientation: Tensor, leg: Tensor) -> Tensor:
    """How much of each pixel the shape covers, (n, 64, 64): 1 inside, 0 outside, between at edges.

    The distance to the shape's edge, measured in pixels, is turned into coverage.
    """
    middle = torch.arange(SIZE, device=leg.device) - (SIZE - 1) / 2
    turn = torch.deg2rad(orientation)[:, None, None]
    right, up = middle[None, None, :], -middle[None, :, None]
    # Pixel positions in the letter's own frame, its bounding box in the centre.
    x = turn.cos() * right + turn.sin() * up
    y = turn.cos() * up - turn.sin() * right
    long, short = (THICKNESS + leg[:, None, None] * full for full in (LONG_LEG, SHORT_LEG))
    x, y = x + short / 2, y + long / 2  # from the outer corner
    stem = _distance_to_box(x, y, THICKNESS, long)
    foot = _distance_to_box(x, y, short, THICKNESS)
    return (0.5 - torch.minimum(stem, foot)).clamp(0.0, 1.0)


def _distance_to_box(x: Tensor, y: Tensor, width: Tensor | float, height: Tensor | float) -> Tensor:
    """Signed distance to the box from (0, 0) to (width, height), negative inside."""
    dx = (x - width / 2).abs() - width / 2
    dy = (y - height / 2).abs() - height / 2
    outside = torch.hypot(dx.clamp_min(0.0), dy.clamp_min(0.0))
    return outside + torch.maximum(dx, dy).clamp_max(0.0)


def _hue_to_rgb(hue: Tensor) -> Tensor:
    """Hue (n, H, W) in degrees to RGB (n, 3, H, W), at constant saturation and value."""
    start = torch.arange(5.0, 0.0, -2.0, device=hue.device)[:, None, None]  # 5, 3, 1
    k = (start + hue.unsqueeze(1) / 60.0).remainder(6.0)
    return VALUE * (1.0 - SATURATION * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0))


def lshape_set(
    n_per_class: int,
    generator: torch.Generator | None = None,
    corrupted: float = CORRUPTED,
    corruption: str = "joint",
) -> tuple[ImageSet, Coordinates]:
    """A pool of L shapes to draw episodes from, and the coordinates (4, n_per_class) behind it.

    Item j of class i was made from `coordinates.orientation[i, j]` and so on. Test sets have
    `corrupted` 0; see `sample_coordinates` for `corruption`.
    """
    coordinates = sample_coordinates(n_per_class, generator, corrupted, corruption)
    tiles = render(coordinates, generator).flatten(0, 1)
    ids = torch.arange(len(tiles), device=tiles.device).view(len(CLASSES), n_per_class, 1)
    counts = torch.full((len(CLASSES),), n_per_class, device=tiles.device)
    images = ImageSet(tiles, ids, counts, NAMES)
    vars(images)["smallest_class"] = n_per_class  # known here, so nobody has to ask the device
    return images, coordinates


# --- The paper's pictures --------------------------------------------------------------------


def class_samples(steps: int = 5) -> tuple[Coordinates, Tensor]:
    """Figure 2a: each class over ±2 standard deviations, (4, steps, steps), orientation first.

    Also the likelihood of each, 1 at the class centre: the paper draws it as transparency.
    """
    check_count("steps", steps)
    reach = torch.linspace(-2.0, 2.0, steps)
    down, across = torch.meshgrid(reach, reach, indexing="ij")  # standard deviations
    centres = torch.tensor(CLASSES)[:, :, None, None]  # (4, 2, 1, 1)
    coordinates = _clean(centres[:, 0] + STD * down, centres[:, 1] + STD * across)
    likelihood = torch.exp(-0.5 * (down.square() + across.square()))
    return coordinates, likelihood.expand(len(CLASSES), steps, steps)


def interpolation_grid(steps: int = 5) -> Coordinates:
    """Figure 2b: class centres in the corners, orientation down and hue to the right."""
    check_count("steps", steps)
    between = torch.linspace(*CENTRES, steps)
    return _clean(*torch.meshgrid(between, between, indexing="ij"))


def graded(factor: str, levels: Sequence[float], repeats: int = 1) -> Coordinates:
    """Figure 3: the four class centres at each level of "hue_noise" or "leg".

    Returns shape (levels, 4, repeats); with hue noise each repeat is drawn anew.
    """
    check_option("factor", factor, ("hue_noise", "leg"))
    check_count("repeats", repeats)
    shape = (len(levels), len(CLASSES), repeats)
    centres = torch.tensor(CLASSES)[:, :, None]
    clean = _clean(centres[:, 0].expand(shape), centres[:, 1].expand(shape))
    level = torch.tensor(levels, dtype=torch.float32)[:, None, None].expand(shape)
    return clean._replace(**{factor: level})


def _clean(orientation: Tensor, hue: Tensor) -> Coordinates:
    return Coordinates(orientation, hue, torch.zeros_like(hue), torch.ones_like(hue))
