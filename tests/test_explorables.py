"""The explorable pictures move in the built page, by mouse and keyboard, and compute what they say.

To test one more: add it to EXPLORABLES, and write below what only it can do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

import spe

EXPLORABLES = {
    "explore-two-gaussians": "ch02_product_of_gaussians",
    "explore-support": "ch02_product_of_gaussians",
    "explore-samplers": "ch05_intersection_sampler",
}
each_explorable = pytest.mark.parametrize("name", EXPLORABLES)
# Relative luminance, as web guidelines define it, of a colour given as rgb(r, g, b).
LUMINANCE = """(colour) => {
  const part = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((value) => part(value / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}"""


@pytest.fixture
def explore(page: Any, book_url: str) -> Callable[[str], Any]:
    """Open the page of an explorable picture, and give the picture. No math: it only takes time."""
    page.route(
        "**/mathjax/**", lambda route: route.fulfill(body="", content_type="text/javascript")
    )

    def opened(name: str) -> Any:
        page.goto(f"{book_url}/chapters/{EXPLORABLES[name]}.html", wait_until="domcontentloaded")
        picture = page.locator(f"#{name}")
        picture.scroll_into_view_if_needed()
        return picture

    return opened


def slide(picture: Any, **values: float) -> None:
    """Set sliders, as a reader would: the picture hears of it."""
    for name, value in values.items():
        slider = picture.locator(f'input[name="{name.replace("_", "-")}"]')
        slider.evaluate(
            "(s, v) => { s.value = v; s.dispatchEvent(new Event('input', { bubbles: true })); }",
            value,
        )


def data(picture: Any, name: str) -> Any:
    return json.loads(picture.get_attribute(f"data-{name}"))


def drag(picture: Any, target: Any, x: float, y: float) -> None:
    """Drag a part of the picture by pixels, with the mouse."""
    box = target.bounding_box()
    start = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    mouse = picture.page.mouse
    mouse.move(*start)
    mouse.down()
    mouse.move(start[0] + x, start[1] + y, steps=4)
    mouse.up()


@each_explorable
def test_a_still_picture_shows_without_javascript(name: str, browser: Any, book_url: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{book_url}/chapters/{EXPLORABLES[name]}.html")
    picture = page.locator(f"#{name}")
    assert picture.locator("svg").is_visible()
    assert picture.locator("svg :is(path, circle, ellipse)").count() >= 5
    assert not picture.locator(".controls").is_visible(), "sliders that do nothing are shown"
    assert "@" not in picture.inner_html(), "a place for the still picture was not filled in"
    context.close()


@each_explorable
def test_every_control_has_a_name_and_moves_the_picture_by_keyboard(
    name: str, explore: Callable[[str], Any]
) -> None:
    picture = explore(name)
    sliders = picture.locator("input[type=range]")
    assert sliders.count() >= 4
    for i in range(sliders.count()):
        slider = sliders.nth(i)
        assert slider.evaluate("s => s.labels[0].innerText.trim() || s.ariaLabel")
        before = picture.inner_html()
        slider.focus()
        middle = slider.evaluate("s => Number(s.value) > (Number(s.min) + Number(s.max)) / 2")
        for _ in range(3):
            picture.page.keyboard.press("ArrowLeft" if middle else "ArrowRight")
        assert picture.inner_html() != before, slider.get_attribute("name")


@each_explorable
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_stand_out_from_the_page(
    name: str, theme: str, explore: Callable[[str], Any]
) -> None:
    picture = explore(name)
    picture.page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
    picture.page.wait_for_timeout(400)  # the theme fades from one set of colours to the other
    paper = picture.evaluate(
        """(node) => {
          while (getComputedStyle(node).backgroundColor === "rgba(0, 0, 0, 0)") {
            node = node.parentElement;
          }
          return getComputedStyle(node).backgroundColor;
        }"""
    )
    inks = [picture.evaluate("n => getComputedStyle(n).color")]
    for variable in ("--a", "--b", "--c"):
        inks.append(
            picture.evaluate(
                """(node, variable) => {
                  const probe = node.appendChild(document.createElement("i"));
                  probe.style.color = `var(${variable})`;
                  const colour = getComputedStyle(probe).color;
                  probe.remove();
                  return colour;
                }""",
                variable,
            )
        )
    for ink in inks:
        low, high = sorted(picture.page.evaluate(LUMINANCE, colour) for colour in (ink, paper))
        assert (high + 0.05) / (low + 0.05) > 3, f"{ink} on {paper}"


@each_explorable
def test_it_fits_a_phone(name: str, explore: Callable[[str], Any]) -> None:
    picture = explore(name)
    picture.page.set_viewport_size({"width": 390, "height": 800})
    picture.scroll_into_view_if_needed()
    for part in ("svg", ".controls"):
        box = picture.locator(part).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


def test_the_script_draws_the_still_picture_first(
    browser: Any, book_url: str, explore: Callable[[str], Any]
) -> None:
    """What Python drew and what JavaScript draws at the start are the same numbers."""
    context = browser.new_context(java_script_enabled=False)
    still_page = context.new_page()
    still_page.goto(f"{book_url}/chapters/ch02_product_of_gaussians.html")
    for name, parts in {
        "explore-two-gaussians": [".a", ".b", ".raw", ".product"],
        "explore-support": ["ellipse >> nth=4", ".prototype", ".plain", ".spread"],
    }.items():
        moving, still = explore(name), still_page.locator(f"#{name}")
        assert moving.locator(".says").inner_text() == still.locator(".says").inner_text()
        for part in parts:
            numbers = [
                picture.locator(part).evaluate(
                    """(n) => ["d", "cx", "cy", "r", "rx", "transform"]
                      .map((key) => n.getAttribute(key) || "").join(" ")
                      .match(/-?[0-9.]+/g).map(Number)"""
                )
                for picture in (moving, still)
            ]
            assert numbers[0] == pytest.approx(numbers[1], abs=0.11), (name, part)
    context.close()


@pytest.mark.parametrize("values", [(-1, 0.5, 1, 2), (3, 6, -4.5, 0.3), (0, 1, 0, 1)])
def test_the_product_of_two_gaussians_is_that_of_the_package(
    values: tuple[float, float, float, float], explore: Callable[[str], Any]
) -> None:
    """JavaScript and `spe.multiply` agree on Eq. 8."""
    picture = explore("explore-two-gaussians")
    m, v, n, w = values
    slide(picture, mean_a=m, var_a=v, mean_b=n, var_b=w)
    a, b = (
        spe.Gaussian(*(torch.tensor([x], dtype=torch.float64) for x in pair))
        for pair in ((m, v), (n, w))
    )
    product, log_mass = spe.multiply(a, b)
    assert data(picture, "mean") == pytest.approx(product.mean.item(), abs=1e-9)
    assert data(picture, "variance") == pytest.approx(product.var.item())
    assert data(picture, "mass") == pytest.approx(log_mass.exp().item())
    assert f"mean {product.mean.item():.2f}".replace("-0.00", "0.00") in (
        picture.locator(".says").inner_text().replace("-0.00", "0.00")
    )


def test_a_gaussian_can_be_dragged_along_the_axis(explore: Callable[[str], Any]) -> None:
    picture = explore("explore-two-gaussians")
    width = picture.locator("svg").bounding_box()["width"]
    drag(picture, picture.locator('[data-moves="mean-a"]'), 2 * 40 * width / 480, 0)
    assert picture.locator('input[name="mean-a"]').input_value() == "1"
    assert data(picture, "mean") == pytest.approx(1.0, abs=1e-9)


def support_of(picture: Any) -> tuple[spe.Gaussian, torch.Tensor]:
    """The examples as the page drew them at the start, as a support set of one class."""
    rows = torch.tensor(data(picture, "examples"), dtype=torch.float64)
    return spe.Gaussian(rows[:, :2], rows[:, 2:].expand(5, 2)), torch.zeros(5, dtype=torch.long)


@pytest.mark.parametrize("noise", [0.05, 0.1, 2.0])
def test_the_prototype_of_the_support_is_that_of_the_package(
    noise: float, explore: Callable[[str], Any]
) -> None:
    """JavaScript and `spe.prototypes` agree on Eq. 5."""
    picture = explore("explore-support")
    slide(picture, noise=noise)
    prototype = spe.prototypes(*support_of(picture), noise)
    assert data(picture, "prototype") == pytest.approx(prototype.mean[0].tolist())
    assert data(picture, "variance") == pytest.approx(prototype.var[0, 0].item())


def test_the_noisy_example_counts_once_it_claims_to_be_sure(explore: Callable[[str], Any]) -> None:
    picture = explore("explore-support")
    support, labels = support_of(picture)
    assert data(picture, "share") < 0.02
    slide(picture, which=5, var=-3)
    assert data(picture, "share") > 0.2
    var = support.var.clone()
    var[4] = 1e-3
    noise = float(picture.get_attribute("data-noise"))
    prototype = spe.prototypes(spe.Gaussian(support.mean, var), labels, noise)
    assert data(picture, "prototype") == pytest.approx(prototype.mean[0].tolist())


def test_an_example_can_be_dragged_across_the_plane(explore: Callable[[str], Any]) -> None:
    picture = explore("explore-support")
    support, labels = support_of(picture)
    scale = 55 * picture.locator("svg").bounding_box()["width"] / 480
    drag(picture, picture.locator("circle.handle").nth(1), 1.5 * scale, 1.0 * scale)
    mean = support.mean.clone()
    mean[1] += torch.tensor([1.5, -1.0])  # the page's y points downwards
    noise = float(picture.get_attribute("data-noise"))
    prototype = spe.prototypes(spe.Gaussian(mean, support.var), labels, noise)
    assert data(picture, "prototype") == pytest.approx(prototype.mean[0].tolist(), abs=0.02)
    assert picture.locator('input[name="which"]').input_value() == "2"


def repeated_normals(seed: int, n: int) -> torch.Tensor:
    """The picture's own random numbers (mulberry32, then Box and Muller): points (n, 2)."""
    mask, state, uniform = 0xFFFFFFFF, seed, []
    for _ in range(2 * n):
        state = (state + 0x6D2B79F5) & mask
        t = (state ^ state >> 15) * (state | 1) & mask
        t ^= t + ((t ^ t >> 7) * (t | 61) & mask) & mask
        uniform.append(((t ^ t >> 14) + 0.5) / 2**32)
    u = torch.tensor(uniform, dtype=torch.float64).view(n, 2)
    radius, angle = (-2 * u[:, 0].log()).sqrt(), 2 * torch.pi * u[:, 1]
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


@pytest.mark.parametrize(
    ("x", "y", "spread", "samples", "target"),
    [(-0.2, 0.3, 0.75, 12, 2), (1.5, -1.0, 0.3, 40, 3), (-2.0, 1.0, 1.6, 5, 4)],
)
def test_both_samplers_are_those_of_the_package(
    x: float, y: float, spread: float, samples: int, target: int, explore: Callable[[str], Any]
) -> None:
    """JavaScript and `spe` agree on Eqs. 7, 8 and 9, sample by sample."""
    picture = explore("explore-samplers")
    slide(picture, x=x, y=y, spread=spread, samples=samples, target=target)
    classes = spe.Gaussian(
        torch.tensor(data(picture, "means"), dtype=torch.float64),
        torch.tensor(data(picture, "variances"), dtype=torch.float64),
    )
    where = torch.tensor([[x, y]], dtype=torch.float64)
    query = spe.Gaussian(where, torch.full_like(where, spread**2))
    steps = repeated_normals(int(picture.get_attribute("data-seed")), samples)
    naive = spe.log_density(query.at(steps), classes).softmax(-1)[:, target].mean()
    overlap, log_mass = spe.multiply(query, classes[target : target + 1])
    weights = log_mass - spe.log_density(overlap.at(steps), classes).logsumexp(-1)
    exact = spe.log_posterior(query, classes, 0.0, n_samples=4096)[0, target].exp()
    assert data(picture, "naive") == pytest.approx(naive.item(), rel=1e-9)
    assert data(picture, "intersection") == pytest.approx(weights.exp().mean().item(), rel=1e-9)
    assert data(picture, "exact") == pytest.approx(exact.item(), abs=2e-3)


def test_the_samplers_start_as_the_still_picture_and_can_be_drawn_again(
    browser: Any, book_url: str, explore: Callable[[str], Any]
) -> None:
    context = browser.new_context(java_script_enabled=False)
    still_page = context.new_page()
    still_page.goto(f"{book_url}/chapters/{EXPLORABLES['explore-samplers']}.html")
    still, moving = still_page.locator("#explore-samplers"), explore("explore-samplers")
    assert moving.locator(".rows b").all_inner_texts() == still.locator(".rows b").all_inner_texts()
    numbers = """(n) => [...n.querySelectorAll("ellipse, .points *")].flatMap((part) =>
      ["cx", "cy", "x", "y", "rx", "ry"].map((key) => Number(part.getAttribute(key))))"""
    assert moving.evaluate(numbers) == pytest.approx(still.evaluate(numbers), abs=0.11)
    context.close()
    before = {name: data(moving, name) for name in ("exact", "naive", "intersection")}
    moving.locator("button").click()
    assert data(moving, "exact") == before["exact"]
    assert data(moving, "naive") != before["naive"]
    assert data(moving, "intersection") != before["intersection"]


def test_the_query_can_be_dragged_to_its_class(explore: Callable[[str], Any]) -> None:
    picture = explore("explore-samplers")
    before = data(picture, "exact")
    scale = 90 * picture.locator("svg").bounding_box()["width"] / 600
    drag(picture, picture.locator(".handle"), 2.1 * scale, -0.2 * scale)
    assert picture.locator('input[name="x"]').input_value() == "1.9"
    assert data(picture, "exact") > 0.5 > before
