"""Positive-definite kernels, feature maps, and their tiled evaluation."""

from __future__ import annotations

from streamkern.kernels.base import Basis, Expansion, Kernel, Product, Scaled, Sum
from streamkern.kernels.dot import NTK, ArcCosine, DotProfile, Linear, Polynomial
from streamkern.kernels.features import (
    FeatureMap,
    Identity,
    KernelFeatures,
    Nystrom,
    RandomFourier,
    ReLUFeatures,
    feature_map_from_json,
)
from streamkern.kernels.radial import Cauchy, ExponentialPower, Gaussian, Laplace, Matern, RadialProfile
from streamkern.kernels.registry import RADIAL, kernel_from_json, named_kernel
from streamkern.kernels.streamed import StoredCenters, StreamedExpansion, mean_row

__all__ = [
    "NTK",
    "RADIAL",
    "ArcCosine",
    "Basis",
    "Cauchy",
    "DotProfile",
    "Expansion",
    "ExponentialPower",
    "FeatureMap",
    "Gaussian",
    "Identity",
    "Kernel",
    "KernelFeatures",
    "Laplace",
    "Linear",
    "Matern",
    "Nystrom",
    "Polynomial",
    "Product",
    "RadialProfile",
    "RandomFourier",
    "ReLUFeatures",
    "Scaled",
    "StoredCenters",
    "StreamedExpansion",
    "Sum",
    "feature_map_from_json",
    "kernel_from_json",
    "mean_row",
    "named_kernel",
]
