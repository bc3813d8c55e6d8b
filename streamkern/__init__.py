"""Train kernel machines on data that does not fit in memory."""

from __future__ import annotations

from importlib import import_module
from streamkern.release import VERSION
from typing import TYPE_CHECKING, Any

from streamkern.starting import paused_collector  # first: whatever is imported next may take most of a second

if TYPE_CHECKING:
    from streamkern.centers import (
        AllRows as AllRows,
        Centers as Centers,
        CenterSet as CenterSet,
        Given as Given,
        KMeans as KMeans,
        RPCholesky as RPCholesky,
        Uniform as Uniform,
    )
    from streamkern.data import (
        Dataset as Dataset,
        Quarantined as Quarantined,
        from_arrays as from_arrays,
        open_dataset as open_dataset,
        read_options as read_options,
    )
    from streamkern.data.augment import (
        Augmentation as Augmentation,
        Custom as Custom,
        FeatureDropout as FeatureDropout,
        GaussianNoise as GaussianNoise,
        MixUp as MixUp,
    )
    from streamkern.preprocessing.automatic import Dates as Dates, Quantile as Quantile
    from streamkern.preprocessing.categories import OneHot as OneHot, Ordinal as Ordinal, TargetEncode as TargetEncode
    from streamkern.data.images import (
        HorizontalFlip as HorizontalFlip,
        RandomCrop as RandomCrop,
        RandomErasing as RandomErasing,
    )
    from streamkern.preprocessing.steps import (
        Impute as Impute,
        Normalise as Normalise,
        RandomProjection as RandomProjection,
        Standardise as Standardise,
        UnitRange as UnitRange,
    )
    from streamkern.errors import (
        BusyError as BusyError,
        CorruptChunkError as CorruptChunkError,
        DataError as DataError,
        MemoryLimitError as MemoryLimitError,
        ModelFormatError as ModelFormatError,
        NumericalError as NumericalError,
        PlanRefusedError as PlanRefusedError,
        PrecisionError as PrecisionError,
        StorageError as StorageError,
        StreamkernError as StreamkernError,
        UsageError as UsageError,
    )
    from streamkern.sklearn.estimators import KernelClassifier as KernelClassifier, KernelRegressor as KernelRegressor
    from streamkern.execute import open_executor as open_executor
    from streamkern.kernels import (
        NTK as NTK,
        ArcCosine as ArcCosine,
        Cauchy as Cauchy,
        DotProfile as DotProfile,
        ExponentialPower as ExponentialPower,
        FeatureMap as FeatureMap,
        Gaussian as Gaussian,
        Identity as Identity,
        Kernel as Kernel,
        KernelFeatures as KernelFeatures,
        Laplace as Laplace,
        Linear as Linear,
        Matern as Matern,
        Nystrom as Nystrom,
        Polynomial as Polynomial,
        RadialProfile as RadialProfile,
        RandomFourier as RandomFourier,
        ReLUFeatures as ReLUFeatures,
    )
    from streamkern.models.machine import KernelMachine as KernelMachine
    from streamkern.models.partitioned import PartitionedMachine as PartitionedMachine, load_model as load_model
    from streamkern.models.tree import Partition as Partition
    from streamkern.resources import Resources as Resources
    from streamkern.runs.pipeline import Pipeline as Pipeline, load_pipeline as load_pipeline
    from streamkern.runs.plan import Plan as Plan, plan as plan
    from streamkern.runs.results import RunResult as RunResult
    from streamkern.runs.run import resume as resume, run as run
    from streamkern.runs.tune import Trial as Trial, Tuning as Tuning, tune as tune
    from streamkern.registry import Registry as Registry, RetrainResult as RetrainResult, retrain as retrain
    from streamkern.inspection.inspect import Inspection as Inspection, inspect as inspect
    from streamkern.report.mlflow import log_to_mlflow as log_to_mlflow
    from streamkern.serving import Predictor as Predictor
    from streamkern.serving.explain import Explanation as Explanation, explain as explain
    from streamkern.serving.predict_files import PredictionResult as PredictionResult, predict as predict
    from streamkern.selection.metric import AGOP as AGOP
    from streamkern.solvers import (
        SGD as SGD,
        SVRG as SVRG,
        Direct as Direct,
        EigenPro as EigenPro,
        EigenPro1 as EigenPro1,
        EigenPro2 as EigenPro2,
        Falkon as Falkon,
        GradientDescent as GradientDescent,
        Logistic as Logistic,
        corollary_1 as corollary_1,
        default_features as default_features,
    )
    from streamkern.formats import Retry as Retry, write_parquet as write_parquet, write_zarr as write_zarr
    from streamkern.ingestion.ingest import Ingested as Ingested, ingest as ingest
    from streamkern.sources.schema import Schema as Schema
    from streamkern.updates.rows import update_model as update_model

__version__ = VERSION

_NAMES = {
    "streamkern.centers": ("AllRows", "Centers", "CenterSet", "Given", "KMeans", "RPCholesky", "Uniform"),
    "streamkern.data": ("Dataset", "Quarantined", "from_arrays", "open_dataset", "read_options"),
    "streamkern.data.augment": ("Augmentation", "Custom", "FeatureDropout", "GaussianNoise", "MixUp"),
    "streamkern.preprocessing.automatic": ("Dates", "Quantile"),
    "streamkern.preprocessing.categories": ("OneHot", "Ordinal", "TargetEncode"),
    "streamkern.data.images": ("HorizontalFlip", "RandomCrop", "RandomErasing"),
    "streamkern.preprocessing.steps": ("Impute", "Normalise", "RandomProjection", "Standardise", "UnitRange"),
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
    "streamkern.sklearn.estimators": ("KernelClassifier", "KernelRegressor"),
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
    "streamkern.models.machine": ("KernelMachine",),
    "streamkern.models.partitioned": ("PartitionedMachine", "load_model"),
    "streamkern.models.tree": ("Partition",),
    "streamkern.resources": ("Resources",),
    "streamkern.runs.pipeline": ("Pipeline", "load_pipeline"),
    "streamkern.runs.plan": ("Plan", "plan"),
    "streamkern.runs.results": ("RunResult",),
    "streamkern.runs.run": ("resume", "run"),
    "streamkern.runs.tune": ("Trial", "Tuning", "tune"),
    "streamkern.registry": ("Registry", "RetrainResult", "retrain"),
    "streamkern.inspection.inspect": ("Inspection", "inspect"),
    "streamkern.report.mlflow": ("log_to_mlflow",),
    "streamkern.serving": ("Predictor",),
    "streamkern.serving.explain": ("Explanation", "explain"),
    "streamkern.serving.predict_files": ("PredictionResult", "predict"),
    "streamkern.selection.metric": ("AGOP",),
    "streamkern.solvers": (
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
    "streamkern.formats": ("Retry", "write_parquet", "write_zarr"),
    "streamkern.ingestion.ingest": ("Ingested", "ingest"),
    "streamkern.sources.schema": ("Schema",),
    "streamkern.updates.rows": ("update_model",),
}
"""Public names by module, which is imported when one of them is first used; the same as for type checkers above."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULES)


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
