"""Train kernel machines on data that does not fit in memory."""

from __future__ import annotations

from importlib import import_module
from streamkern.version import VERSION
from typing import TYPE_CHECKING, Any

from streamkern.startup import paused_collector  # first: whatever is imported next may take most of a second

if TYPE_CHECKING:
    from streamkern import augment as augment, errors as errors
    from streamkern.centers import (
        AllRows as AllRows,
        Centers as Centers,
        Given as Given,
        KMeans as KMeans,
        RPCholesky as RPCholesky,
        Uniform as Uniform,
    )
    from streamkern.data import (
        Dataset as Dataset,
        from_arrays as from_arrays,
        open_dataset as open_dataset,
        read_options as read_options,
    )
    from streamkern.preprocessing.automatic_steps import Dates as Dates, Quantile as Quantile
    from streamkern.preprocessing.category_steps import (
        OneHot as OneHot,
        Ordinal as Ordinal,
        TargetEncode as TargetEncode,
    )
    from streamkern.preprocessing.steps import (
        Impute as Impute,
        Normalise as Normalise,
        RandomProjection as RandomProjection,
        Standardise as Standardise,
        UnitRange as UnitRange,
    )
    from streamkern.errors import (
        DataError as DataError,
        MemoryLimitError as MemoryLimitError,
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
    from streamkern.models.kernel_machine import KernelMachine as KernelMachine
    from streamkern.models.partitioned_machine import PartitionedMachine as PartitionedMachine, load_model as load_model
    from streamkern.models.cut_tree import Partition as Partition
    from streamkern.resources import Resources as Resources
    from streamkern.runs.pipeline_definition import Pipeline as Pipeline, load_pipeline as load_pipeline
    from streamkern.runs.plan import plan as plan
    from streamkern.runs.run_pipeline import resume as resume, run as run
    from streamkern.runs.tune import tune as tune
    from streamkern.registry import Registry as Registry
    from streamkern.registry.retrain import retrain as retrain
    from streamkern.inspection.inspect_dataset import inspect as inspect
    from streamkern.serving import Predictor as Predictor
    from streamkern.serving.explain import explain as explain
    from streamkern.serving.predict_files import predict as predict
    from streamkern.selection.learned_metric import AGOP as AGOP
    from streamkern.papers import (
        SGD as SGD,
        SVRG as SVRG,
        GradientDescent as GradientDescent,
        corollary_1 as corollary_1,
        default_features as default_features,
    )
    from streamkern.solvers import (
        Direct as Direct,
        EigenPro as EigenPro,
        EigenPro1 as EigenPro1,
        EigenPro2 as EigenPro2,
        Falkon as Falkon,
        LBFGS as LBFGS,
        Pinball as Pinball,
    )
    from streamkern.formats import Retry as Retry
    from streamkern.formats.parquet import write_parquet as write_parquet
    from streamkern.formats.training_zarr import write_zarr as write_zarr
    from streamkern.ingestion.ingest import ingest as ingest
    from streamkern.sources.schema import Schema as Schema
    from streamkern.updates.update_model import update_model as update_model

__version__ = VERSION

_NAMES = {
    "streamkern": "augment errors",
    "streamkern.centers": "AllRows Centers Given KMeans RPCholesky Uniform",
    "streamkern.data": "Dataset from_arrays open_dataset read_options",
    "streamkern.preprocessing.automatic_steps": "Dates Quantile",
    "streamkern.preprocessing.category_steps": "OneHot Ordinal TargetEncode",
    "streamkern.preprocessing.steps": "Impute Normalise RandomProjection Standardise UnitRange",
    "streamkern.errors": "DataError MemoryLimitError StreamkernError UsageError",
    "streamkern.sklearn.estimators": "KernelClassifier KernelRegressor",
    "streamkern.execute": "open_executor",
    "streamkern.kernels": (
        "NTK ArcCosine Cauchy DotProfile ExponentialPower FeatureMap Gaussian Identity Kernel KernelFeatures "
        "Laplace Linear Matern Nystrom Polynomial RadialProfile RandomFourier ReLUFeatures"
    ),
    "streamkern.models.kernel_machine": "KernelMachine",
    "streamkern.models.partitioned_machine": "PartitionedMachine load_model",
    "streamkern.models.cut_tree": "Partition",
    "streamkern.resources": "Resources",
    "streamkern.runs.pipeline_definition": "Pipeline load_pipeline",
    "streamkern.runs.plan": "plan",
    "streamkern.runs.run_pipeline": "resume run",
    "streamkern.runs.tune": "tune",
    "streamkern.registry": "Registry",
    "streamkern.registry.retrain": "retrain",
    "streamkern.inspection.inspect_dataset": "inspect",
    "streamkern.serving": "Predictor",
    "streamkern.serving.explain": "explain",
    "streamkern.serving.predict_files": "predict",
    "streamkern.selection.learned_metric": "AGOP",
    "streamkern.papers": "SGD SVRG GradientDescent corollary_1 default_features",
    "streamkern.solvers": "Direct EigenPro EigenPro1 EigenPro2 Falkon LBFGS Pinball",
    "streamkern.formats": "Retry",
    "streamkern.formats.parquet": "write_parquet",
    "streamkern.formats.training_zarr": "write_zarr",
    "streamkern.ingestion.ingest": "ingest",
    "streamkern.sources.schema": "Schema",
    "streamkern.updates.update_model": "update_model",
}
"""Public names by module, which is imported when one of them is first used; the same as for type checkers above."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with paused_collector():
        if _MODULES[name] == __name__:
            return import_module(f"{__name__}.{name}")  # which makes it an attribute of this module
        module = import_module(_MODULES[name])
    found = globals()[name] = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
