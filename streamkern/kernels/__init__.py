"""Positive-definite kernels, feature maps, and their tiled evaluation."""

from __future__ import annotations

from streamkern.kernels.base import Basis, Expansion, Kernel, Product, Scaled, Sum
from streamkern.kernels.dot import NTK, ArcCosine, DotProfile, Linear, Polynomial
from streamkern.kernels.radial import Cauchy, ExponentialPower, Gaussian, Laplace, Matern, RadialProfile
from streamkern.kernels.registry import kernel_from_json

__all__ = [
    "NTK",
    "ArcCosine",
    "Basis",
    "Cauchy",
    "DotProfile",
    "Expansion",
    "ExponentialPower",
    "Gaussian",
    "Kernel",
    "Laplace",
    "Linear",
    "Matern",
    "Polynomial",
    "Product",
    "RadialProfile",
    "Scaled",
    "Sum",
    "kernel_from_json",
]
