"""Positive-definite kernels, feature maps, and their tiled evaluation."""

from __future__ import annotations

from streamkern.engine.base import Basis
from streamkern.kernels.base import Expansion, Kernel, Product, Scaled, Sum
from streamkern.kernels.dot_product import NTK, ArcCosine, DotProfile, Linear, Polynomial
from streamkern.kernels.feature_maps import (
    FeatureMap,
    Identity,
    KernelFeatures,
    Nystrom,
    RandomFourier,
    ReLUFeatures,
    feature_map_from_json,
)
from streamkern.kernels.named_kernels import RADIAL_KERNELS, is_open, kernel_from_json, named_kernel
from streamkern.kernels.radial import Cauchy, ExponentialPower, Gaussian, Laplace, Matern, RadialProfile
from streamkern.kernels.stored_centers import StoredCenters, StreamedExpansion, mean_row

__all__ = [
    "NTK",
    "RADIAL_KERNELS",
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
    "is_open",
    "kernel_from_json",
    "mean_row",
    "named_kernel",
]
