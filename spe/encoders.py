"""The networks of the paper's Appendix A (chapters 6, 7, 8 and 10)."""

import math

import torch
from torch import Tensor, nn

from spe.checks import check_count


class Encoder(nn.Module):
    """A network from images to ``d`` numbers each, or to ``2 d``: means, then raw variances.

    Wrap a network of your own in it, any module that ends in so many numbers an image. Images may
    be uint8 (scaled to [0, 1] here) or floating point, (n, channels, height, width). Weights and
    activations are kept channels-last, which convolutions run fastest in.
    """

    def __init__(self, net: nn.Module, d: int, channels: int, stochastic: bool) -> None:
        super().__init__()
        self.n_outputs = n_outputs(d, stochastic)
        self.net = net
        self.d = d
        self.channels = channels
        self.stochastic = stochastic
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() != 4 or images.shape[1] != self.channels:
            raise ValueError(
                f"images has shape {tuple(images.shape)}; expected (n, {self.channels}, h, w)"
            )
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise TypeError(f"images has type {images.dtype}; expected uint8 or floating point")
        dtype = next((p.dtype for p in self.parameters()), torch.get_default_dtype())
        x = images.to(dtype, memory_format=torch.channels_last)
        out = self.net(x / 255 if images.dtype == torch.uint8 else x)
        wanted = self.n_outputs
        if out.shape[1:] != (wanted,):
            raise ValueError(
                f"images of {images.shape[2]} x {images.shape[3]} give {tuple(out.shape[1:])} "
                f"numbers each; expected ({wanted},): another size of images, or a network that "
                f"ends in {wanted} numbers"
            )
        return out


def n_outputs(d: int, stochastic: bool) -> int:
    check_count("d", d)
    return 2 * d if stochastic else d


def _conv_net(channels: int, hidden_blocks: int, outputs: int) -> nn.Sequential:
    """Blocks of convolution, batch norm, pooling and ReLU; the last is convolution and pooling.

    Pooling comes before the ReLU: the two commute, and this order touches less memory.
    """
    layers: list[nn.Module] = []
    for block in range(hidden_blocks):
        conv = nn.Conv2d(channels if block == 0 else 64, 64, 3, padding=1)
        layers += [conv, nn.BatchNorm2d(64), nn.MaxPool2d(2), nn.ReLU()]
    layers += [nn.Conv2d(64, outputs, 3, padding=1), nn.MaxPool2d(2), nn.Flatten()]
    net = nn.Sequential(*layers)
    for layer in net:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            bound = 1 / math.sqrt(layer.weight[0].numel())
            nn.init.uniform_(layer.bias, -bound, bound)  # type: ignore[arg-type]
    return net


class OmniglotEncoder(Encoder):
    """Four blocks for 28 x 28 characters (Appendix A.1)."""

    def __init__(self, d: int, stochastic: bool = True) -> None:
        super().__init__(_conv_net(1, 3, n_outputs(d, stochastic)), d, 1, stochastic)


class LShapeEncoder(Encoder):
    """Six blocks for 64 x 64 colour images (Appendix A.2)."""

    def __init__(self, d: int, stochastic: bool = True) -> None:
        super().__init__(_conv_net(3, 5, n_outputs(d, stochastic)), d, 3, stochastic)


class DigitEncoder(Encoder):
    """Two convolutions and two full layers for 28 x 28 N digit images (Appendix A.3)."""

    def __init__(self, d: int, n_digits: int, stochastic: bool = True) -> None:
        net = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(6, 16, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 7 * 7 * n_digits, 120),
            nn.ReLU(),
            nn.Linear(120, n_outputs(d, stochastic)),
        )
        for layer in net:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        super().__init__(net, d, 1, stochastic)
