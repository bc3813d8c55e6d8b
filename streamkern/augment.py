"""Augmentations of training rows, for ``Dataset.augment``: ``sk.augment.MixUp`` and others."""

from __future__ import annotations

from streamkern.data.augment import Augmentation, Custom, FeatureDropout, GaussianNoise, MixUp
from streamkern.data.image_augmentation import HorizontalFlip, RandomCrop, RandomErasing

__all__ = [
    "Augmentation",
    "Custom",
    "FeatureDropout",
    "GaussianNoise",
    "HorizontalFlip",
    "MixUp",
    "RandomCrop",
    "RandomErasing",
]
