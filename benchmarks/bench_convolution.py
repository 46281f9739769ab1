"""Seconds and workspace of each implementation of convolution layers: what a plan chooses from.

    python benchmarks/bench_convolution.py [THREADS] > table.txt

Layers of ResNet-50, VGG-16, MobileNet-V2, ResNeXt and a 3d U-Net. A star: no other implementation of the operator
takes both less time and less workspace.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from monet.capture import capture
from monet.ops.catalogue import catalogue
from monet.ops.measuring.profiling import profile

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "resnet 3-64 7x7 s2": (nn.Conv2d(3, 64, 7, 2, 3), (8, 3, 224, 224)),
    "resnet 64-64 3x3": (nn.Conv2d(64, 64, 3, 1, 1), (32, 64, 56, 56)),
    "resnet 256-64 1x1": (nn.Conv2d(256, 64, 1), (16, 256, 56, 56)),
    "resnet 256-512 1x1 s2": (nn.Conv2d(256, 512, 1, 2), (8, 256, 56, 56)),
    "resnet 128-128 3x3 s2": (nn.Conv2d(128, 128, 3, 2, 1), (16, 128, 56, 56)),
    "resnet 512-512 3x3": (nn.Conv2d(512, 512, 3, 1, 1), (16, 512, 7, 7)),
    "vgg 64-128 3x3": (nn.Conv2d(64, 128, 3, 1, 1), (8, 64, 112, 112)),
    "vgg 512-512 3x3": (nn.Conv2d(512, 512, 3, 1, 1), (8, 512, 14, 14)),
    "mobilenet 144 3x3 s2 depthwise": (nn.Conv2d(144, 144, 3, 2, 1, groups=144), (16, 144, 56, 56)),
    "resnext 256 3x3, 32 groups": (nn.Conv2d(256, 256, 3, 1, 1, groups=32), (8, 256, 28, 28)),
    "unet 16-32 3x3x3 s2": (nn.Conv3d(16, 32, 3, 2, 1), (8, 16, 48, 48, 48)),
    "unet 32-32 3x3x3": (nn.Conv3d(32, 32, 3, 1, 1), (8, 32, 24, 24, 24)),
    "unet 64-16 3x3x3 s2 transposed": (nn.ConvTranspose3d(64, 16, 3, 2, 1, 1), (8, 64, 24, 24, 24)),
    "unet 128-64 2x2 s2 transposed": (nn.ConvTranspose2d(128, 64, 2, 2), (8, 128, 56, 56)),
}


class _Between(nn.Module):
    """So that neither the layer's input nor its output is the step's own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.layer(x * 2))


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads())
    for name, (layer, shape) in LAYERS.items():
        offers = catalogue(capture(_Between(layer), (torch.randn(shape, requires_grad=True),)).graph)
        measured = profile(offers)
        for node, named in (*offers.forward.items(), *offers.backward.items()):
            if "convolution" not in node:
                continue
            found = [(n, measured.of(i, offers)) for n, i in named.items()]
            rows = [(n, m.time_s, m.workspace_bytes()) for n, m in found]
            best = {n for n, t, b in rows if not any(u < t and c < b for _, u, c in rows)}
            print(f"{name:32}{node.removeprefix('convolution_'):18}", end="")
            print(
                "  ".join(f"{'*' * (n in best)}{n} {1e3 * t:.0f} ms {b / 2**20:.1f} MiB" for n, t, b in rows),
                flush=True,
            )


if __name__ == "__main__":
    main()
