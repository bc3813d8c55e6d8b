"""Pipeline: the definition of a run. A file with ``pipeline(**params) -> Pipeline`` is a command-line program."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.errors import StreamkernError, UsageError, options_of, quoted, require_types
from streamkern.execute.base import PIPELINE_FILE
from streamkern.fitting.arguments import Where, completed, is_instance_with, require_arguments
from streamkern.fitting.fit import TASKS
from streamkern.fitting.recipe import Recipe
from streamkern.redaction import keep_setting_secrets
from streamkern.storage.untrusted_files import given_path
from streamkern.user_code_digest import exception_text, user_code_location


@dataclass(frozen=True, eq=False)
class Pipeline(Recipe):
    """A training job: data, model and solver.

    Creating a Pipeline reads no rows, with one exception. If ``validation`` is a share, any ``time`` or ``group``
    column of the training rows (see ``open_dataset``) is read.

    Args:
        train: training rows with a target.
        kernel: as in ``KernelRegressor``.
        centers: as in ``KernelRegressor``.
        solver: as in ``KernelRegressor``. ``plan`` prints the reason for an automatic choice.
        features: a feature map, such as ``RandomFourier``, for solvers that support it. None: the features are kernel
            values at the centers.
        test: rows for the final metrics, or None.
        validation: as in ``KernelRegressor``.
        task: ``classification`` or ``regression``.
        preprocess: as in ``KernelRegressor``. Rows are preprocessed before they are augmented.
        metric: as in ``KernelRegressor``.
        partition: as in ``KernelRegressor``. With a feature map, or with ``diagnose=True``, ``"auto"`` is the same as
            None.
        class_weight: as in ``KernelClassifier``.
        threshold: as in ``KernelClassifier``.
        loss: as in ``KernelRegressor``.
        scaling: as in ``KernelRegressor``. With ``"standard"``, noise that an augmentation adds is in units of the
            features' standard deviations.
        seed: seed of the centers, the held-out rows and the order of rows, an integer >= 0.
        lanes: as in ``KernelRegressor``.
        dtype: as in ``KernelRegressor``.
        diagnose: True adds to the result the eigenvalues of the normal equations, and a comparison of the weights with
            the least-squares solution. This needs one more pass over the rows, and memory for several matrices of p²
            numbers, for p centers.
        name: name of the run in reports; by default, the name of the file.
        file: the file that defines the pipeline, or an empty string.
        settings: arguments that ``load_pipeline`` passed to the function in this file.

    Raises:
        UsageError: an unknown task or dtype, lanes below 1, an argument of the wrong type, or an old argument name.
    """

    name: str = ""
    file: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def where(name: str) -> str:
            return f"Pipeline({name}=...)"

        require_arguments(self, where)
        self._require_types(where)
        for name, value in completed(self, self.train, self.task, where).items():
            object.__setattr__(self, name, value)

    def _require_types(self, where: Where) -> None:
        if self.task not in TASKS:
            raise UsageError(f"task is {self.task!r}.", where=where("task"), expected=" or ".join(TASKS))
        if self.class_weight is not None and self.task != "classification":
            raise UsageError(
                "class_weight is given, and the task is regression.",
                where=where("class_weight"),
                expected="None for regression",
                remedy="weigh rows: sk.open_dataset(path, target=..., weight=...)",
            )
        require_types(self, "diagnose", "seed", "lanes", "name", "file", "settings")
        data = "a Dataset: sk.open_dataset(path, target=...) or sk.from_arrays(X, y)"
        for name, right, expected in (
            ("train", isinstance(self.train, Dataset), data),
            ("test", isinstance(self.test, Dataset | None), f"{data}; or None"),
            (
                "features",
                self.features is None or is_instance_with(self.features, "basis"),
                "a map such as sk.ReLUFeatures(1000)",
            ),
        ):
            if not right:
                raise UsageError(f"{name} is {getattr(self, name)!r}.", where=where(name), expected=expected)


def load_pipeline(path: str | Path, settings: Mapping[str, Any] | None = None, **keywords: Any) -> Pipeline:
    """Load the pipeline of a file.

    Args:
        path: a Python file with a function ``pipeline``, which returns a ``Pipeline``.
        settings: arguments of the function by name: numbers, True and False, None, paths, or strings. A string is
            converted to the annotated type, as on the command line.
        keywords: the same arguments as keywords: ``load_pipeline("digits.py", copies=8)``.

    Raises:
        UsageError: there is no such file, function or argument, or a value has the wrong type.
    """
    file = Path(given_path(path))
    settings = {name: _as_text(name, value) for name, value in {**(settings or {}), **keywords}.items()}
    keep_setting_secrets(settings)
    function = _function(file)
    arguments = _arguments(function, settings, file)
    with _explaining(file, "pipeline()"):
        made = function(**arguments)
    if not isinstance(made, Pipeline):
        raise UsageError(
            f"pipeline() returned {type(made).__name__}.", where=str(file), expected="a streamkern.Pipeline"
        )
    return replace(made, name=made.name or file.stem, file=str(file.absolute()), settings=settings)


@contextmanager
def _explaining(file: Path, what: str) -> Iterator[None]:
    """Raise exceptions of a pipeline file as one UsageError with file and line, but errors of this library as they are.

    A file that ends its process, by ``sys.exit(0)`` too, has made no pipeline.
    """
    try:
        yield
    except (StreamkernError, KeyboardInterrupt):
        raise
    except SyntaxError as error:
        raise UsageError(
            f"The pipeline file is not valid Python: {error}.",
            where=f"{error.filename or file}, line {error.lineno}",
            expected="Python that this interpreter reads",
            remedy="correct the line",
        ) from error
    except ImportError as error:
        raise UsageError(
            f"{what} has an import that fails: {exception_text(error)}",
            where=user_code_location(error) or str(file),
            expected=f"modules that are installed for {sys.executable}, or that PYTHONPATH names",
            remedy="correct the name; or install the package; or put its folder in PYTHONPATH",
        ) from error
    except BaseException as error:
        raise UsageError(
            f"{what} raised {exception_text(error)}",
            where=user_code_location(error) or str(file),
            expected="a file that runs, and whose pipeline() returns a streamkern.Pipeline",
            remedy="correct the line",
        ) from error


class Parameter(NamedTuple):
    """A setting of a pipeline file: ``kind`` is its annotated type, ``str`` without an annotation."""

    kind: Any
    default: Any
    text: str


def parameters(path: str | Path) -> dict[str, Parameter]:
    """The settings a pipeline file takes, by name."""
    return _parameters(_function(Path(given_path(path))))


def _parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise UsageError(
            f"An annotation of pipeline() cannot be read: {error}.",
            where=function.__code__.co_filename,
            expected="annotations such as int, float, str or bool",
            remedy="import the name when the file runs, or leave the annotation out",
        ) from error
    texts = _texts(inspect.getdoc(function) or "")
    return {
        name: Parameter(hints.get(name, str), p.default, texts.get(name, ""))
        for name, p in inspect.signature(function).parameters.items()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


def _texts(doc: str) -> dict[str, str]:
    """By name, from the section Args of a docstring in Google's style."""
    texts: dict[str, str] = {}
    name, inside = "", False
    for line in doc.splitlines():
        if not line.startswith(" "):
            inside = line.rstrip() == "Args:" or (inside and not line)
            continue
        found = re.fullmatch(r"    (\w+)(?: \(.*?\))?:\s*(.*)", line)
        if inside and found:
            name = found[1]
            texts[name] = found[2].strip()
        elif inside and name:
            texts[name] = f"{texts[name]} {line.strip()}"
    return texts


def _function(file: Path) -> Callable[..., Any]:
    if not file.is_file():
        raise UsageError(
            "There is no pipeline file here.",
            where=str(file),
            expected="a Python file that defines pipeline()",
            remedy="check the path",
        )
    if file.suffix != ".py":
        raise UsageError("This is not a Python file.", where=str(file), expected="a file that ends in .py")
    module = ModuleType(PIPELINE_FILE + file.stem)
    module.__file__ = str(file.absolute())  # kept results know a file by it, whatever the directory of the call
    sys.modules[module.__name__] = module  # dataclasses and pickles of the user's classes look their module up
    with _explaining(file, "The pipeline file"):
        # Compiled each time: cached bytecode would pass for that of an edit of the same size and second.
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), vars(module))
    function = getattr(module, "pipeline", None)
    if not callable(function):
        raise UsageError(
            "The file defines no function pipeline.", where=str(file), expected="def pipeline(...) -> sk.Pipeline"
        )
    return typing.cast(Callable[..., Any], function)


def _as_text(name: str, value: Any) -> str:
    """As the command line would give it, which is how a run records it."""
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, str | bool | int | float | Path | None):
        raise UsageError(
            f"The setting {name!r} is {quoted(value)}.",
            where=f"load_pipeline(..., {name}=...)",
            expected="a number, a text, a path, True, False or None",
            remedy="parse a text in pipeline()",
        )
    return str(value)


def _arguments(function: Callable[..., Any], settings: Mapping[str, str], file: Path) -> dict[str, Any]:
    known = _parameters(function)
    arguments = {}
    for name, text in settings.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise UsageError(
                f"The pipeline has no parameter {name!r}" + (f"; did you mean {close[0]!r}?" if close else "."),
                where=str(file),
                expected="one of " + ", ".join(known) if known else "no settings",
            )
        arguments[name] = _convert(text, known[name].kind, name)
    empty = inspect.Parameter.empty
    missing = [name for name, p in known.items() if p.default is empty and name not in arguments]
    if missing:
        raise UsageError(
            f"The parameter {missing[0]!r} has no default.",
            where=str(file),
            expected="a value for each parameter without a default",
            remedy=f"give it: --set {missing[0]}=...",
        )
    return arguments


def type_name(kind: Any) -> str:
    """An annotated type in words: ``int``, ``str or None``."""
    names: list[str] = []
    for option in options_of(kind):
        if typing.get_origin(option) is typing.Literal:
            names += map(str, typing.get_args(option))
        else:
            names.append(str(option) if typing.get_args(option) else getattr(option, "__name__", str(option)))
    return " or ".join("None" if name == "NoneType" else name for name in names)


def _convert(text: str, kind: Any, name: str) -> Any:
    options = options_of(kind)
    if type(None) in options and text.lower() in ("none", ""):
        return None
    for option in options:
        try:
            if option is bool:
                value = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
                return value
            if option is int:
                number = float(text.replace("_", "")) if "e" in text.lower() else int(text)
                if number == int(number):
                    return int(number)
            elif option is float:
                return float(text)
            elif option in (str, Path):
                return option(text)
            elif typing.get_origin(option) is typing.Literal:
                return {str(value).lower(): value for value in typing.get_args(option)}[text.lower()]
        except (KeyError, ValueError, OverflowError):
            continue
    wanted = type_name(kind)
    literal = any(typing.get_origin(option) is typing.Literal for option in options)
    if not literal and not {bool, int, float, str, Path} & set(options):
        raise UsageError(
            f"The parameter {name!r} is a {wanted}, which the command line cannot parse.",
            where=f"--set {name}=...",
            expected="int, float, str, bool, Path, a Literal, or one of them or None",
            remedy="annotate the parameter as str and parse it in pipeline()",
        )
    raise UsageError(f"The value {text!r} is not of type {wanted}.", where=f"--set {name}=...", expected=wanted)
