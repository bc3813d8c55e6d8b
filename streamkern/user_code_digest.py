"""Identity of a user's function: a digest of its code and of everything of the user's that the code refers to.

A result may be reused only where the same code would be run again. The digest covers bytecode, constants, defaults,
closure cells, and the globals and modules that the code names, transitively, within the user's own files. What is
installed (the standard library, packages in site-packages, this library) counts by name and version.

``dask.base.tokenize`` does not keep this promise: it knows an importable function by its name, so that an edited helper
has the same token, and a set that a function names gives another token in another process.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np

_OPAQUE = frozenset({"eval", "exec", "compile", "globals", "locals", "vars", "__import__", "open", "input"})
"""Builtins that reach code or data which the bytecode does not name."""

_IRRELEVANT = frozenset({
    "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__", "__static_attributes__",
    "__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__", "__match_args__", "__builtins__",
    "__cached__", "__file__", "__loader__", "__spec__", "__package__", "__path__", "__name__", "__qualname__",
})  # fmt: skip

_KIND = sum((inspect.CO_VARARGS, inspect.CO_VARKEYWORDS, inspect.CO_GENERATOR, inspect.CO_COROUTINE,
             inspect.CO_ASYNC_GENERATOR))  # fmt: skip
"""Flags of code that change a call of it; others are of the file that it was compiled from."""

_CODE = ("code", "names", "varnames", "freevars", "cellvars", "argcount", "posonlyargcount", "kwonlyargcount",
         "exceptiontable")  # fmt: skip
"""What a code object says of itself, without its place in a file; besides, its constants and flags."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_PACKAGE = __name__.partition(".")[0]
_OWN = str(Path(__file__).parent)


@dataclass(frozen=True)
class CodeIdentity:
    """The identity of code.

    ``digest`` is hexadecimal, and another one wherever the code, or anything of the user's that it refers to, differs.
    ``unknown`` says why other code may have the same digest, in a sentence; None where it may not.
    """

    digest: str
    unknown: str | None = None


def code_identity(value: Any) -> CodeIdentity:
    """Return the identity of a function, class or object with all that it refers to."""
    walk = _Walk()
    try:
        digest = walk.digest(value)
    except Exception as error:  # objects of the user's may raise anything when they are read
        digest = ""
        walk.unknown = f"{_name(value)} refers to an object that cannot be compared: {type(error).__name__}."
    return CodeIdentity(digest, walk.unknown)


def user_code_identities(part: Any) -> list[CodeIdentity]:
    """Return the identities of the user's functions and classes in a part of a pipeline, such as a kernel."""
    return [code_identity(each) for each in _users(part)]


def described(part: Any) -> Any:
    """Return a description of a part of a pipeline, for a digest: its parameters, and the identity of the code."""
    if part is None:
        return None
    code = [identity.digest for identity in user_code_identities(part)]
    return [part.to_json(), code] if code else part.to_json()


def unknown_code(*parts: Any) -> str | None:
    """Return the reason why edits of the user's code in these parts cannot be detected, or None if they can."""
    return next((identity.unknown for identity in user_code_identities(parts) if identity.unknown), None)


def _users(part: Any) -> Iterator[Any]:
    if isinstance(part, (*_PLAIN, np.ndarray, np.generic)):
        return
    if isinstance(part, tuple | list | set | frozenset):
        for each in part:
            yield from _users(each)
    elif isinstance(part, dict):
        yield from _users(tuple(part.values()))
    elif type(part).__module__.partition(".")[0] == _PACKAGE:
        if is_dataclass(part):
            for field in fields(part):
                yield from _users(getattr(part, field.name))
    elif callable(part) or not _is_library(type(part).__module__):
        yield part


class _Walk:
    """Reduces values to digests, and notes the parts whose code cannot be known."""

    def __init__(self) -> None:
        self.unknown: str | None = None
        self._done: dict[int, str] = {}
        self._open: dict[int, int] = {}
        self._alive: list[Any] = []  # an id is unique as long as its object lives

    def digest(self, value: Any) -> str:
        if type(value) in _PLAIN:
            return _hash(type(value).__name__, hashlib.sha256(value).digest() if type(value) is bytes else repr(value))
        key = id(value)
        if key in self._done:
            return self._done[key]
        if key in self._open:
            return _hash("cycle", self._open[key])
        self._open[key] = len(self._open)
        self._alive.append(value)
        try:
            found = _hash(*self._parts(value))
        finally:
            del self._open[key]
        self._done[key] = found
        return found

    def _doubt(self, what: str) -> None:
        self.unknown = self.unknown or what

    def _all(self, values: Any) -> list[str]:
        return [self.digest(each) for each in values]

    def _parts(self, value: Any) -> tuple[Any, ...]:
        kind = type(value)
        match value:
            case tuple() | list() if kind in (tuple, list):
                return (kind.__name__, *self._all(value))
            case set() | frozenset():  # their order changes from process to process
                return (self.digest(kind), *sorted(self._all(value)))
            case dict() | MappingProxyType() if kind in (dict, MappingProxyType):
                return (kind.__name__, *self._all(each for pair in value.items() for each in pair))
            case CodeType():
                return self._code(value, {})
            case FunctionType():
                return self._function(value)
            case BuiltinFunctionType():
                return self._builtin(value)
            case property():
                return ("property", *self._all((value.fget, value.fset, value.fdel)))
            case type():
                return self._class(value)
            case ModuleType():
                return self._module(value)
        return self._object(value)

    # ---------------------------------------------------------------------------------------------------- functions

    def _function(self, function: FunctionType) -> tuple[Any, ...]:
        if _is_library(function.__module__) and "<" not in function.__qualname__:
            return _library(function.__module__, function.__qualname__)
        cells = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                cells[name] = self.digest(cell.cell_contents)
            except ValueError:  # not assigned yet
                cells[name] = "empty"
        return (
            "function",
            self._code(function.__code__, function.__globals__),
            self.digest(function.__defaults__),
            self.digest(function.__kwdefaults__),
            sorted(cells.items()),
        )

    def _code(self, code: CodeType, space: dict[str, Any]) -> tuple[Any, ...]:
        """Instructions, names and constants, without line numbers; and the values of the globals named there."""
        constants = [
            self._code(each, space) if isinstance(each, CodeType) else self.digest(each) for each in code.co_consts
        ]
        own = [getattr(code, f"co_{name}") for name in _CODE]
        return (*own, code.co_flags & _KIND, constants, sorted(self._globals(code, space).items()))

    def _globals(self, code: CodeType, space: dict[str, Any]) -> dict[str, str]:
        """Digests of the globals, and of the attributes of modules, that the instructions name."""
        found: dict[str, str] = {}
        steps = list(dis.get_instructions(code))
        for i, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level = steps[i - 2].argval if steps[i - 2].opname == "LOAD_CONST" else 0
                found[f"import {step.argval}"] = self._imported(step.argval, level, space)
            elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                self._doubt(f"{code.co_qualname} changes the global variable {step.argval!r}.")
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                name = str(step.argval)
                if name not in space:
                    if name in _OPAQUE:
                        self._doubt(f"{code.co_qualname} calls {name}(), which can reach code and data unseen.")
                    found[name] = "builtin"
                    continue
                value, following = space[name], i + 1
                while (
                    isinstance(value, ModuleType)
                    and not _is_library(value.__name__)
                    and steps[following].opname in ("LOAD_ATTR", "LOAD_METHOD")
                    and hasattr(value, steps[following].argval)
                ):
                    value = getattr(value, steps[following].argval)
                    name, following = f"{name}.{steps[following].argval}", following + 1
                found[name] = self.digest(value)
        return found

    def _imported(self, name: str, level: Any, space: dict[str, Any]) -> str:
        package = space.get("__package__") or str(space.get("__name__", "")).rpartition(".")[0]
        try:
            full = importlib.util.resolve_name("." * level + name, package) if level else name
            module = importlib.import_module(full)
        except Exception as error:  # importing runs the user's code
            self._doubt(f"the module {name!r} cannot be imported: {error}.")
            return "missing"
        return self.digest(module)

    def _builtin(self, function: BuiltinFunctionType) -> tuple[Any, ...]:
        owner, module = function.__self__, function.__module__
        if owner is not None and not isinstance(owner, ModuleType):
            return ("bound", function.__name__, self.digest(owner))
        if module in (None, "builtins") and function.__name__ in _OPAQUE:
            self._doubt(f"{function.__name__}() can reach code and data unseen.")
        if module is not None and not _is_library(module):
            return ("compiled", function.__name__, self._file(module))
        return _library(module or "builtins", function.__name__)

    def _file(self, module: str) -> str:
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None:
            self._doubt(f"the compiled module {module!r} has no file.")
            return "no file"
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()

    # -------------------------------------------------------------------------------------------- classes and objects

    def _class(self, kind: type) -> tuple[Any, ...]:
        if _is_library(kind.__module__) and "<" not in kind.__qualname__:
            return _library(kind.__module__, kind.__qualname__)
        members = {
            name: self.digest(member)
            for name, member in vars(kind).items()
            if name not in _IRRELEVANT
            and not inspect.isgetsetdescriptor(member)
            and not inspect.ismemberdescriptor(member)
        }
        return ("class", kind.__qualname__, self._all(kind.__bases__), sorted(members.items()))

    def _module(self, module: ModuleType) -> tuple[Any, ...]:
        if _is_library(module.__name__):
            return _library(module.__name__, "")
        if module.__file__ is not None and not module.__file__.endswith(".py"):
            return ("compiled", self._file(module.__name__))
        members = {name: self.digest(member) for name, member in vars(module).items() if name not in _IRRELEVANT}
        return ("module", sorted(members.items()))

    def _object(self, value: Any) -> tuple[Any, ...]:
        kind = type(value)
        if _is_library(kind.__module__):
            for name in ("py_func", "__wrapped__"):  # Numba's compiled functions; functools.cache, and its like
                if (wrapped := getattr(value, name, None)) is not None:
                    options = getattr(value, "targetoptions", None)
                    return ("wrapped", _name(kind), self.digest(wrapped), self.digest(options))
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(2) if reduce is None else reduce(value)
        except Exception:  # locks, files, generators and classes of the user's may raise anything
            self._doubt(f"a {_name(kind)} that it refers to cannot be compared with another one.")
            return ("unknown", _name(kind))
        if isinstance(reduced, str):  # the name of a global
            homes = [name for name, module in [*sys.modules.items()] if vars(module).get(reduced) is value]
            home = next(filter(_is_library, homes), None)
            if home is None:
                self._doubt(f"a {_name(kind)} that it refers to cannot be compared with another one.")
            return _library(str(home).partition(".")[0], reduced)
        return ("reduced", *self._all(tuple(each) if isinstance(each, Iterator) else each for each in reduced))


def exception_text(error: BaseException) -> str:
    """Return an exception's class and message, as a sentence."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text if text.endswith(".") else f"{text}."


def user_code_location(error: BaseException) -> str | None:
    """Return the innermost line of the user's code that an exception came by, in words, or None if it came by none."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith("<") and not _is_installed(file) and not file.startswith(_OWN):
            place = f"{file}, line {line}"
    return place


def _hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()


def _name(value: Any) -> str:
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(kind, '__module__', '')}.{kind.__qualname__}"


def _library(module: str, name: str) -> tuple[Any, ...]:
    """By name and version."""
    version = getattr(sys.modules.get(module.partition(".")[0]), "__version__", None)
    return ("installed", module, name, version if isinstance(version, str) else "")


@cache
def _installed() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple(Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _is_library(module: str | None) -> bool:
    top = str(module).partition(".")[0]
    if top in (_PACKAGE, "builtins") or (top in sys.stdlib_module_names and top != "__main__"):
        return True
    found = sys.modules.get(top)
    places = [getattr(found, "__file__", None), *getattr(found, "__path__", ())]
    return next((_is_installed(place) for place in places if place), False)


@cache
def _is_installed(place: str) -> bool:
    path = Path(place).resolve()
    return bool({"site-packages", "dist-packages"} & set(path.parts)) or any(
        path.is_relative_to(folder) for folder in _installed()
    )
