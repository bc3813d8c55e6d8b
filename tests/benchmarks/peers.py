"""Other libraries' models of tables, with their defaults, as estimators that take a frame: for ``tables`` and others.

They run where they are installed: ``pip install lightgbm xgboost catboost chimeraboost xrfm pytabkit`` (TabM's).
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, OneHotEncoder, StandardScaler


def threads() -> int:
    """Threads of LightGBM, which waits in loops for those that the machine gives to others."""
    return int(os.environ.get("TABLES_THREADS", "-1"))


def trees(classes: bool, **how: Any) -> Any:
    """LightGBM with its defaults: 100 trees of 31 leaves."""
    import lightgbm

    made = lightgbm.LGBMClassifier if classes else lightgbm.LGBMRegressor
    return made(verbose=-1, random_state=0, n_jobs=threads(), **how)


def larger_trees(classes: bool) -> Any:
    """LightGBM with what covtype takes for 96%: with a lighter ``min_child_weight`` its losses grow again."""
    return trees(classes, n_estimators=45, num_leaves=511, learning_rate=0.2, min_child_weight=5.0, reg_lambda=1.0)


class Hist:
    """Scikit-learn's boosted trees with their defaults, without what they refuse.

    Those are more than 255 categories, in whose place they get numbers in the order of the words, and classes of a
    single row. (The order of the file would tell of targets where it is sorted by them.)

    Args:
        classes: whether targets are classes.
        how: further settings.
    """

    def __init__(self, classes: bool, **how: Any) -> None:
        made = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
        self.model = made(random_state=0, categorical_features="from_dtype", **how)

    def __getattr__(self, name: str) -> Any:
        """What the model knows: ``classes_``."""
        return getattr(self.model, name)

    def fit(self, frame: pd.DataFrame, y: np.ndarray) -> None:
        """Fit all rows but those."""
        _, at, counts = np.unique(y, return_inverse=True, return_counts=True)
        keep = counts[at] > 1 if isinstance(self.model, HistGradientBoostingClassifier) else np.ones(len(y), bool)
        self.model.fit(self._coded(frame)[keep], y[keep])

    def predict(self, frame: pd.DataFrame) -> np.ndarray:
        """Targets of rows."""
        return np.asarray(self.model.predict(self._coded(frame)))

    def predict_proba(self, frame: pd.DataFrame) -> np.ndarray:
        """Probabilities of ``classes_``."""
        return np.asarray(self.model.predict_proba(self._coded(frame)))

    def _coded(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the frame with numbers in place of categories that are too many."""
        kinds = {name: kind for name, kind in frame.dtypes.items() if isinstance(kind, pd.CategoricalDtype)}
        wide = [name for name, kind in kinds.items() if len(kind.categories) > 255]
        ordered = {str(name): frame[name].cat.set_categories(sorted(kinds[name].categories)) for name in wide}
        return frame.assign(**{name: values.cat.codes for name, values in ordered.items()})


class MoreTrees:
    """LightGBM with 3,000 trees of 127 leaves at a rate of 0.05, stopped early by a tenth of the rows.

    Args:
        classes: whether targets are classes.
    """

    def __init__(self, classes: bool) -> None:
        self.classes = classes
        self.model = trees(classes, n_estimators=3000, num_leaves=127, learning_rate=0.05)

    def fit(self, frame: pd.DataFrame, y: np.ndarray) -> None:
        """Fit nine tenths of the rows; fifty trees that gain nothing on the rest are the end."""
        A, B, a, b = _held(frame, y, self.classes, 0.1)
        stop = import_module("lightgbm").early_stopping(50, verbose=False)
        self.model.fit(A, a, eval_set=[(B, b)], callbacks=[stop])

    def predict(self, frame: pd.DataFrame) -> np.ndarray:
        """Targets of rows."""
        return np.asarray(self.model.predict(frame))


class Wrapped:
    """A library's model that takes rows in a form of its own, and some the numbers of classes in place of classes."""

    model: Any
    codes: LabelEncoder | None = None

    def predict(self, frame: pd.DataFrame) -> np.ndarray:
        """Targets of rows."""
        found = np.asarray(self.model.predict(self._taken(frame))).ravel()
        return found if self.codes is None else np.asarray(self.codes.inverse_transform(found))

    def predict_proba(self, frame: pd.DataFrame) -> np.ndarray:
        """Probabilities of ``classes_``."""
        return np.asarray(self.model.predict_proba(self._taken(frame)))

    @property
    def classes_(self) -> np.ndarray:
        """The classes, in their order."""
        return np.asarray((self.codes or self.model).classes_)

    def _taken(self, frame: pd.DataFrame) -> Any:
        """Return rows as the model takes them."""
        return frame


class XGBoost(Wrapped):
    """XGBoost with its defaults.

    Args:
        classes: whether targets are classes.
    """

    def __init__(self, classes: bool) -> None:
        library = import_module("xgboost")
        made = library.XGBClassifier if classes else library.XGBRegressor
        self.codes = LabelEncoder() if classes else None
        self.model = made(random_state=0, enable_categorical=True)

    def fit(self, frame: pd.DataFrame, y: np.ndarray) -> None:
        """Fit all rows."""
        self.model.fit(frame, y if self.codes is None else self.codes.fit_transform(y))


class CatBoost(Wrapped):
    """CatBoost with its defaults, 1,000 trees, and the categories by name; a missing category is a word.

    Args:
        classes: whether targets are classes.
    """

    named = "cat_features"

    def __init__(self, classes: bool) -> None:
        library = import_module("catboost")
        made = library.CatBoostClassifier if classes else library.CatBoostRegressor
        self.model = made(random_seed=0, verbose=False, allow_writing_files=False)

    def fit(self, frame: pd.DataFrame, y: np.ndarray) -> None:
        """Fit all rows."""
        self.words = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
        self.model.fit(self._taken(frame), y, **{self.named: self.words})

    def _taken(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the frame with texts for categories: it refuses gaps among them."""
        return frame.assign(**{name: frame[name].astype(object).fillna("missing").astype(str) for name in self.words})


class ChimeraBoost(CatBoost):
    """ChimeraBoost with its defaults, at most 2,000 trees, and the categories and their gaps as CatBoost has them.

    Args:
        classes: whether targets are classes.
    """

    def __init__(self, classes: bool) -> None:
        library = import_module("chimeraboost")
        made = library.ChimeraBoostClassifier if classes else library.ChimeraBoostRegressor
        self.model = made(random_state=0)


class TabM(CatBoost):
    """TabM with pytabkit's defaults on the CPU, and medians for missing numbers, which it refuses.

    Args:
        classes: whether targets are classes.
    """

    named = "cat_col_names"

    def __init__(self, classes: bool) -> None:
        library = import_module("pytabkit")
        made = library.TabM_D_Classifier if classes else library.TabM_D_Regressor
        self.model = made(device="cpu", random_state=0)

    def fit(self, frame: pd.DataFrame, y: np.ndarray) -> None:
        """Fit four fifths of the rows; the rest is for when to stop."""
        self.medians = frame.median(numeric_only=True)
        super().fit(frame, y)

    def _taken(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the frame without gaps."""
        return super()._taken(frame).fillna(self.medians)


class XRFM(Wrapped):
    """xRFM with its defaults and the preprocessing that it recommends; a fifth of the rows is for its validation.

    Args:
        classes: whether targets are classes.
    """

    def __init__(self, classes: bool) -> None:
        self.classes = classes
        self.codes = LabelEncoder() if classes else None

    def fit(self, frame: pd.DataFrame, y: np.ndarray) -> None:
        """Standardise numbers, fill gaps with medians, one-hot categories; its kernel machine on the rest."""
        import torch

        words = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
        numbers = [name for name in frame.columns if name not in words]
        self.encoder = make_column_transformer(
            (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
            (OneHotEncoder(handle_unknown="ignore", sparse_output=False), words),
        )
        target = np.asarray(y, np.float32)[:, None] if self.codes is None else self.codes.fit_transform(y)
        A, B, a, b = _held(frame, target, self.classes, 0.2)
        self.spread = (0.0, 1.0) if self.classes else (float(a.mean()), float(a.std()) or 1.0)
        rows = self.encoder.fit_transform(A), self.encoder.transform(B)
        center, scale = self.spread
        targets = (a, b) if self.classes else ((a - center) / scale, (b - center) / scale)
        info = self._categories(len(numbers), rows[0].shape[1])
        self.model = import_module("xrfm").xRFM(
            device=torch.device("cpu"), categorical_info=info, random_state=0, verbose=False
        )
        tensors = [torch.tensor(np.asarray(each, np.float32)) for each in rows]
        answers = [torch.tensor(each) for each in targets]
        self.model.fit(tensors[0], answers[0], tensors[1], answers[1])

    def predict(self, frame: pd.DataFrame) -> np.ndarray:
        """Targets of rows."""
        center, scale = self.spread
        found = super().predict(frame)
        return found if self.classes else found * scale + center

    def _taken(self, frame: pd.DataFrame) -> Any:
        """Return the encoded rows, a float a cell."""
        import torch

        return torch.tensor(np.asarray(self.encoder.transform(frame), np.float32))

    def _categories(self, numbers: int, width: int) -> dict[str, Any]:
        """Which columns are numbers and which the levels of one category, as it wants to know."""
        import torch

        levels, at = [], numbers
        for found in getattr(self.encoder.named_transformers_.get("onehotencoder"), "categories_", []):
            levels.append(torch.arange(at, at + len(found)))
            at += len(found)
        assert at == width
        vectors = [torch.eye(len(each)) for each in levels]
        return {
            "numerical_indices": torch.arange(numbers),
            "categorical_indices": levels,
            "categorical_vectors": vectors,
        }


def _held(frame: Any, y: np.ndarray, classes: bool, share: float) -> Any:
    """Rows to fit and rows to stop by, with every class among the former."""
    counts = np.unique(y, return_counts=True)[1] if classes else [2]
    return train_test_split(
        frame, y, test_size=share, random_state=0, stratify=y if min(counts) > 1 and classes else None
    )


PEERS: dict[str, tuple[str, Any]] = {
    "LightGBM": ("lightgbm", trees),
    "LightGBM, 3,000 trees": ("lightgbm", MoreTrees),
    "LightGBM, 45 large trees": ("lightgbm", larger_trees),
    "XGBoost": ("xgboost", XGBoost),
    "CatBoost": ("catboost", CatBoost),
    "HistGradientBoosting": ("sklearn", Hist),
    "ChimeraBoost": ("chimeraboost", ChimeraBoost),
    "xRFM": ("xrfm", XRFM),
    "TabM": ("pytabkit", TabM),
}
"""The package that a model needs, and what makes it."""
