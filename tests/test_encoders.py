"""The networks are those of the paper's Appendix A."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spe import DigitEncoder, LShapeEncoder, OmniglotEncoder
from spe.encoders import Encoder

MAKERS = {
    "omniglot": (lambda d, s: OmniglotEncoder(d, s), (1, 28, 28)),
    "lshapes": (lambda d, s: LShapeEncoder(d, s), (3, 64, 64)),
    "digits": (lambda d, s: DigitEncoder(d, 2, s), (1, 28, 56)),
    "three digits": (lambda d, s: DigitEncoder(d, 3, s), (1, 28, 84)),
}


def images(shape: tuple[int, ...], n: int = 3, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(256, (n, *shape), generator=g, dtype=torch.uint8)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stochastic", [True, False])
@pytest.mark.parametrize("name", MAKERS)
def test_an_image_becomes_d_numbers_or_twice_as_many(name: str, stochastic: bool, n: int) -> None:
    """Also one image alone: no dimension is lost."""
    make, shape = MAKERS[name]
    out = make(5, stochastic).eval()(images(shape, n))
    assert out.shape == (n, 10 if stochastic else 5)
    assert out.isfinite().all()


def count(encoder: Encoder) -> int:
    return sum(p.numel() for p in encoder.parameters())


def test_the_networks_have_the_parameters_of_appendix_a() -> None:
    def block(channels: int) -> int:
        return 64 * (9 * channels + 1) + 2 * 64  # convolution, batch norm

    def last(d: int) -> int:
        return 2 * d * (9 * 64 + 1)

    assert count(OmniglotEncoder(2)) == block(1) + 2 * block(64) + last(2)
    assert count(LShapeEncoder(2)) == block(3) + 4 * block(64) + last(2)
    convolutions = 6 * (25 + 1) + 16 * (6 * 25 + 1)
    for n_digits in (2, 3):
        full = 120 * (16 * 7 * 7 * n_digits + 1) + 4 * (120 + 1)
        assert count(DigitEncoder(2, n_digits)) == convolutions + full


def appendix_a(encoder: Encoder, x: Tensor) -> Tensor:
    """The function of Appendix A on the encoder's weights: ReLU first, then max-pooling."""
    modules = list(encoder.net)
    convolutions = [m for m in modules if isinstance(m, nn.Conv2d)]
    norms = [m for m in modules if isinstance(m, nn.BatchNorm2d)]
    full = [m for m in modules if isinstance(m, nn.Linear)]
    for i, convolution in enumerate(convolutions):
        x = convolution(x)
        if i < len(norms):
            x = norms[i](x)
        if full or i < len(norms):
            x = F.relu(x)
        x = F.max_pool2d(x, 2)
    x = x.flatten(1)
    for i, layer in enumerate(full):
        x = layer(F.relu(x) if i else x)
    return x


@pytest.mark.parametrize("name", MAKERS)
def test_pooling_first_is_the_same_function(name: str) -> None:
    make, shape = MAKERS[name]
    encoder = make(3, True).eval()
    x = images(shape)
    torch.testing.assert_close(encoder(x), appendix_a(encoder, x / 255), atol=1e-5, rtol=1e-4)


def test_bytes_are_scaled_to_one_and_floats_are_left_alone() -> None:
    encoder = OmniglotEncoder(2).eval()
    x = images((1, 28, 28))
    torch.testing.assert_close(encoder(x), encoder(x / 255))
    assert not torch.allclose(encoder(x), encoder(x.float()))


def test_no_image_depends_on_its_neighbours_in_evaluation_mode() -> None:
    encoder = OmniglotEncoder(2).eval()
    x = images((1, 28, 28))
    torch.testing.assert_close(encoder(x)[1:2], encoder(x[1:2]), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", MAKERS)
def test_weights_and_activations_are_channels_last(name: str) -> None:
    make, shape = MAKERS[name]
    encoder = make(2, True)
    seen = []
    for layer in encoder.net:
        if isinstance(layer, nn.Conv2d):
            assert layer.weight.is_contiguous(memory_format=torch.channels_last)
            layer.register_forward_hook(lambda _, __, out: seen.append(out))
    encoder(images(shape))
    for activation in seen:
        assert activation.is_contiguous(memory_format=torch.channels_last)


def test_the_convolution_weights_start_as_he_says() -> None:
    """Appendix A.1: He's normal weights, uniform biases within 1 / sqrt(fan in)."""
    torch.manual_seed(0)
    for encoder in (OmniglotEncoder(2), LShapeEncoder(2)):
        for layer in encoder.net:
            if isinstance(layer, nn.Conv2d):
                fan_in = layer.weight[0].numel()
                expected = math.sqrt(2 / fan_in)
                assert abs(layer.weight.std().item() / expected - 1) < 0.15
                assert layer.weight.abs().max() > 2 * expected  # normal, not uniform
                assert layer.bias is not None
                assert 0 < layer.bias.abs().max() <= 1 / math.sqrt(fan_in)


def test_the_digit_weights_start_as_xavier_says() -> None:
    """Appendix A.3: uniform weights, biases of zero."""
    torch.manual_seed(0)
    for layer in DigitEncoder(2, 2).net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            receptive = layer.weight[0, 0].numel()
            fans = (layer.weight.shape[0] + layer.weight.shape[1]) * receptive
            bound = math.sqrt(6 / fans)
            assert 0.9 * bound < layer.weight.abs().max() <= bound
            assert (layer.bias == 0).all()


def test_the_network_follows_its_dtype() -> None:
    encoder = OmniglotEncoder(2).double().eval()
    assert encoder(images((1, 28, 28))).dtype == torch.float64


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((28, 28), r"images has shape \(3, 28, 28\); expected \(n, 1, h, w\)"),
        ((3, 28, 28), r"images has shape \(3, 3, 28, 28\)"),
        ((1, 32, 32), r"images of 32 x 32 give \(16,\) numbers each; expected \(4,\)"),
    ],
)
def test_images_of_another_kind_are_refused(shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        OmniglotEncoder(2)(images(shape))


def test_whole_numbers_other_than_bytes_are_refused() -> None:
    """They would not be scaled to [0, 1]."""
    with pytest.raises(TypeError, match=r"images has type torch\.int64; expected uint8 or float"):
        OmniglotEncoder(2)(images((1, 28, 28)).long())


def test_a_network_without_weights_is_an_encoder_too() -> None:
    """Pixels as they are: a baseline."""
    pixels = Encoder(nn.Flatten(), 784, 1, False)(images((1, 28, 28)))
    assert torch.equal(pixels, images((1, 28, 28)).flatten(1) / 255)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: OmniglotEncoder(0), "d=0; expected an integer of at least 1"),
        (lambda: LShapeEncoder(2.0), r"d=2\.0; expected"),
        (lambda: DigitEncoder(-1, 2), "d=-1; expected"),
        (lambda: Encoder(nn.Flatten(), 0, 1, True), "d=0; expected"),
    ],
)
def test_numbers_of_dimensions_are_checked(make: Callable, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()
