"""Train kernel machines on data that does not fit in memory."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import streamkern.starting  # noqa: F401  # first: what follows takes most of a second
from streamkern.centers import AllRows, Centers, CenterSet, Given, KMeans, RPCholesky, Uniform
from streamkern.data import Dataset, Quarantined, from_arrays, open_dataset
from streamkern.data.augment import Augmentation, Custom, FeatureDropout, GaussianNoise, MixUp
from streamkern.data.auto import Dates, Quantile
from streamkern.data.categories import OneHot, Ordinal, TargetEncode
from streamkern.data.images import HorizontalFlip, RandomCrop, RandomErasing
from streamkern.data.preprocess import Impute, Normalise, RandomProjection, Standardise, UnitRange
from streamkern.errors import (
    BusyError,
    CorruptChunkError,
    DataError,
    MemoryLimitError,
    ModelFormatError,
    NumericalError,
    PlanRefusedError,
    PrecisionError,
    StorageError,
    StreamkernError,
    UsageError,
)
from streamkern.execute import open_executor
from streamkern.kernels import (
    NTK,
    ArcCosine,
    Cauchy,
    DotProfile,
    ExponentialPower,
    FeatureMap,
    Gaussian,
    Identity,
    Kernel,
    KernelFeatures,
    Laplace,
    Linear,
    Matern,
    Nystrom,
    Polynomial,
    RadialProfile,
    RandomFourier,
    ReLUFeatures,
)
from streamkern.model import KernelMachine, load_model
from streamkern.partition import Partition, PartitionedMachine
from streamkern.pipeline import Pipeline, Plan, RunResult, Trial, Tuning, load_pipeline, plan, resume, run, tune
from streamkern.registry import Registry, RetrainResult, retrain
from streamkern.report.inspect import Inspection, inspect
from streamkern.report.mlflow import log_to_mlflow
from streamkern.serving import Predictor
from streamkern.serving.predict import PredictionResult, predict
from streamkern.solvers import (
    AGOP,
    SGD,
    SVRG,
    Direct,
    EigenPro,
    EigenPro1,
    EigenPro2,
    Falkon,
    GradientDescent,
    corollary_1,
    default_features,
)
from streamkern.storage import Retry, write_parquet, write_zarr
from streamkern.storage.ingest import Ingested, ingest
from streamkern.storage.schema import Schema

if TYPE_CHECKING:
    from streamkern.estimators import KernelClassifier, KernelRegressor

__version__ = version("streamkern")

__all__ = [
    "AGOP",
    "NTK",
    "SGD",
    "SVRG",
    "AllRows",
    "ArcCosine",
    "Augmentation",
    "BusyError",
    "Cauchy",
    "CenterSet",
    "Centers",
    "CorruptChunkError",
    "Custom",
    "DataError",
    "Dataset",
    "Dates",
    "Direct",
    "DotProfile",
    "EigenPro",
    "EigenPro1",
    "EigenPro2",
    "ExponentialPower",
    "Falkon",
    "FeatureDropout",
    "FeatureMap",
    "Gaussian",
    "GaussianNoise",
    "Given",
    "GradientDescent",
    "HorizontalFlip",
    "Identity",
    "Impute",
    "Ingested",
    "Inspection",
    "KMeans",
    "Kernel",
    "KernelClassifier",
    "KernelFeatures",
    "KernelMachine",
    "KernelRegressor",
    "Laplace",
    "Linear",
    "Matern",
    "MemoryLimitError",
    "MixUp",
    "ModelFormatError",
    "Normalise",
    "NumericalError",
    "Nystrom",
    "OneHot",
    "Ordinal",
    "Partition",
    "PartitionedMachine",
    "Pipeline",
    "Plan",
    "PlanRefusedError",
    "Polynomial",
    "PrecisionError",
    "PredictionResult",
    "Predictor",
    "Quantile",
    "Quarantined",
    "RPCholesky",
    "RadialProfile",
    "RandomCrop",
    "RandomErasing",
    "RandomFourier",
    "RandomProjection",
    "ReLUFeatures",
    "Registry",
    "RetrainResult",
    "Retry",
    "RunResult",
    "Schema",
    "Standardise",
    "StorageError",
    "StreamkernError",
    "TargetEncode",
    "Trial",
    "Tuning",
    "Uniform",
    "UnitRange",
    "UsageError",
    "corollary_1",
    "default_features",
    "from_arrays",
    "ingest",
    "inspect",
    "load_model",
    "load_pipeline",
    "log_to_mlflow",
    "open_dataset",
    "open_executor",
    "plan",
    "predict",
    "resume",
    "retrain",
    "run",
    "tune",
    "write_parquet",
    "write_zarr",
]


def __getattr__(name: str) -> Any:
    """Estimators on first use: scikit-learn is half of the import time, and a pipeline does without it."""
    if name in ("KernelClassifier", "KernelRegressor"):
        from streamkern import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
