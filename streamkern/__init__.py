"""Train kernel machines on data that does not fit in memory."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from streamkern.starting import paused_collector  # first: whatever is imported next may take most of a second

if TYPE_CHECKING:
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
    from streamkern.estimators import KernelClassifier, KernelRegressor
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
    from streamkern.model import KernelMachine
    from streamkern.partition.model import PartitionedMachine, load_model
    from streamkern.partition.tree import Partition
    from streamkern.pipeline.pipeline import Pipeline, load_pipeline
    from streamkern.pipeline.plan import Plan, plan
    from streamkern.pipeline.results import RunResult
    from streamkern.pipeline.run import resume, run
    from streamkern.pipeline.tune import Trial, Tuning, tune
    from streamkern.registry import Registry, RetrainResult, retrain
    from streamkern.report.inspect import Inspection, inspect
    from streamkern.report.mlflow import log_to_mlflow
    from streamkern.serving import Predictor
    from streamkern.serving.explain import Explanation, explain
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
        Logistic,
        corollary_1,
        default_features,
    )
    from streamkern.storage import Retry, write_parquet, write_zarr
    from streamkern.storage.ingest import Ingested, ingest
    from streamkern.storage.schema import Schema
    from streamkern.updates.rows import update_model

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
    "Explanation",
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
    "Logistic",
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
    "explain",
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
    "update_model",
    "write_parquet",
    "write_zarr",
]

_NAMES = {
    "streamkern.centers": ("AllRows", "Centers", "CenterSet", "Given", "KMeans", "RPCholesky", "Uniform"),
    "streamkern.data": ("Dataset", "Quarantined", "from_arrays", "open_dataset"),
    "streamkern.data.augment": ("Augmentation", "Custom", "FeatureDropout", "GaussianNoise", "MixUp"),
    "streamkern.data.auto": ("Dates", "Quantile"),
    "streamkern.data.categories": ("OneHot", "Ordinal", "TargetEncode"),
    "streamkern.data.images": ("HorizontalFlip", "RandomCrop", "RandomErasing"),
    "streamkern.data.preprocess": ("Impute", "Normalise", "RandomProjection", "Standardise", "UnitRange"),
    "streamkern.errors": (
        "BusyError",
        "CorruptChunkError",
        "DataError",
        "MemoryLimitError",
        "ModelFormatError",
        "NumericalError",
        "PlanRefusedError",
        "PrecisionError",
        "StorageError",
        "StreamkernError",
        "UsageError",
    ),
    "streamkern.estimators": ("KernelClassifier", "KernelRegressor"),
    "streamkern.execute": ("open_executor",),
    "streamkern.kernels": (
        "NTK",
        "ArcCosine",
        "Cauchy",
        "DotProfile",
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
        "RadialProfile",
        "RandomFourier",
        "ReLUFeatures",
    ),
    "streamkern.model": ("KernelMachine",),
    "streamkern.partition.model": ("PartitionedMachine", "load_model"),
    "streamkern.partition.tree": ("Partition",),
    "streamkern.pipeline.pipeline": ("Pipeline", "load_pipeline"),
    "streamkern.pipeline.plan": ("Plan", "plan"),
    "streamkern.pipeline.results": ("RunResult",),
    "streamkern.pipeline.run": ("resume", "run"),
    "streamkern.pipeline.tune": ("Trial", "Tuning", "tune"),
    "streamkern.registry": ("Registry", "RetrainResult", "retrain"),
    "streamkern.report.inspect": ("Inspection", "inspect"),
    "streamkern.report.mlflow": ("log_to_mlflow",),
    "streamkern.serving": ("Predictor",),
    "streamkern.serving.explain": ("Explanation", "explain"),
    "streamkern.serving.predict": ("PredictionResult", "predict"),
    "streamkern.solvers": (
        "AGOP",
        "SGD",
        "SVRG",
        "Direct",
        "EigenPro",
        "EigenPro1",
        "EigenPro2",
        "Falkon",
        "GradientDescent",
        "Logistic",
        "corollary_1",
        "default_features",
    ),
    "streamkern.storage": ("Retry", "write_parquet", "write_zarr"),
    "streamkern.storage.ingest": ("Ingested", "ingest"),
    "streamkern.storage.schema": ("Schema",),
    "streamkern.updates.rows": ("update_model",),
}
"""Public names by module, which is imported when one of them is first used; the same as for type checkers above."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with paused_collector():
        module = import_module(_MODULES[name])
    found = globals()[name] = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
