"""Secrets stay out of whatever is written: errors, events, manifests, results, reports and records of a registry.

Every writer calls ``redacted``. It hides user information and queries of URLs by their shape, and the values of all
known secrets: passwords and signatures in URLs, settings, storage options and environment variables with the name of a
secret, and the secret parts of connection strings.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote

T = TypeVar("T")

HIDDEN = "***"
"""Written in place of a secret."""

_NAMED = re.compile(
    r"secret|token|passw|passphrase|credential|signature|cookie|"
    r"(?:^|_)(?:key|keys|pwd|pw|pass|auth|authorization|sas|sig|bearer|header|headers)(?:_|$)|(?:api|access|account|private)key"
)
# A path makes one slash of two. Repetitions are bounded: a long word, which a damaged file may hold, takes linear time.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]{1,30}):/{1,2}")
_END = r"\s'\"<>\\"  # characters that end a URL within a text
_WORD = re.compile(rf"[^{_END}]+")
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs", "az", "adl")  # scheme://container@account: no secret

# Each is searched for once from a place on, never from every scheme to the end of a word: see ``_without_url_secrets``.
_USER_STOP, _PATH_STOP = re.compile(r"[/?#@:]"), re.compile(r"[/?#]")
_WEB, _QUERY_START = re.compile(r"(?:https?|wss?)://", re.IGNORECASE), re.compile(r"[?#]")
# In other stores a "?" may be part of a glob, and a "#" of a name: a query has name=value, or is one long word.
_PAIR, _LONG_WORD = re.compile(r"[^/?#=]*="), re.compile(r"[^/.*?#\[\]]{8,}\Z")
_ASSIGNED = re.compile(
    r"((?:secret|token|passw(?:or)?d|signature|credential|(?:api|access|account|private)[_\-]?key)[\w.\-]{0,60}"
    rf"|\bsig)(=|[\"']:\s*[\"'])[^&;,{_END}]+",
    re.IGNORECASE,
)
_IN_CONNECTION = re.compile(r"(?:^|;)\s*(?:AccountKey|SharedAccess\w{1,20}|Password|Pwd)=(?P<value>[^;]+)", re.I)
_BEARER = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{8,}", re.IGNORECASE)

# Variables of the environment whose values are no secrets, whatever their names: places, and the working directory.
_PLACES = re.compile(r"(?:_FILE|_PATH|_DIR|_SOCK|_URL|_URI)$|^(?:OLD)?PWD$|^GOOGLE_APPLICATION_CREDENTIALS$", re.I)

_WORDS = frozenset({"true", "false", "none", "null", "auto", "default"})
_LONG = 8  # letters from which a secret is hidden inside words, too

_given: set[str] = set()


def names_secret(name: str) -> bool:
    """Return True if a setting or option of this name holds a secret: ``token``, ``access_key``, ``apiKey``."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\s.\-]+", "_", name)
    return _NAMED.search(snake.lower()) is not None


def keep_secret(*values: str) -> None:
    """Hide these texts from now on, wherever they are written; words such as ``true`` and short texts are left."""
    for value in values:
        if len(value) >= 4 and value.lower() not in _WORDS and not (value.isdigit() and len(value) < 6):
            _given.add(value)


def keep_url_secrets(text: str) -> None:
    """Hide from now on the user information and the signatures of a URL; other texts are left alone."""
    keep_secret(*_url_secrets(text))


def keep_option_secrets(options: Any) -> None:
    """Hide from now on the values that storage options, nested or not, hold under the name of a secret."""
    keep_secret(*_under_secret_names(options))


def keep_setting_secrets(settings: Mapping[str, str]) -> None:
    """Hide from now on the secrets among the settings of a pipeline: by name, and in URLs."""
    for name, value in settings.items():
        if names_secret(name):
            keep_secret(value)
        keep_url_secrets(value)


def redacted(value: T) -> T:
    """Return the value without secrets.

    Values of a dictionary called ``settings`` or ``storage_options`` are hidden by name as well. Objects that JSON does
    not have stay as they are.
    """
    return cast(T, _redacted(value, cache(_hidden)))  # few values hold text: it is made where one does


def _redacted(value: Any, hidden: Callable[[], re.Pattern[str] | None], by_name: bool = False) -> Any:
    """With ``by_name``, the value is a setting or an option, or holds some."""
    if isinstance(value, str):
        return _text(value, hidden(), whole=by_name)
    if isinstance(value, dict):
        found = {}
        for name, each in value.items():
            inside = by_name or name in ("settings", "storage_options")
            secret = by_name and bool(each) and names_secret(str(name))
            found[name] = HIDDEN if secret else _redacted(each, hidden, inside)
        return found
    if type(value) in (list, tuple):
        return type(value)(_redacted(each, hidden, by_name) for each in value)
    return value


def _text(text: str, hidden: re.Pattern[str] | None, whole: bool) -> str:
    """With ``whole``, the text may be nothing but a URL, and then holds spaces and quotes."""
    if hidden is not None:
        text = hidden.sub(HIDDEN, text)
    if ":/" in text:
        if whole and _SCHEME.match(text):
            text = _without_query(_without_users(text))
        text = _WORD.sub(lambda word: _without_url_secrets(word[0]), text)
    return _BEARER.sub(rf"\1 {HIDDEN}", _ASSIGNED.sub(rf"\1\2{HIDDEN}", text))


def _without_url_secrets(word: str) -> str:
    """In time linear in the length of the word, in which URLs may stand."""
    return _without_query(_without_web_query(_without_users(word))) if ":/" in word else word


def _without_users(text: str) -> str:
    parts, done, last = list[str](), 0, text.rfind("@")
    for scheme in _SCHEME.finditer(text):
        at = _end_of_user(text, scheme.end(), last) if scheme.start() >= done else 0
        if at:
            user = text[scheme.end() : at]
            shown = user if _is_container(scheme[1], user) else HIDDEN
            parts += [text[done : scheme.end()], shown, "@"]
            done = at + 1
    return "".join((*parts, text[done:]))


def _end_of_user(text: str, start: int, last: int) -> int:
    """Position of the @ that ends the user information of a URL, which begins after the scheme; 0 where it has none.

    With a password, which may hold anything, that is the last @ of the text, which is at ``last``.
    """
    stop = _USER_STOP.search(text, start)
    if stop is not None and stop[0] == ":" and last > stop.start():
        return last
    path = _PATH_STOP.search(text, start)
    return max(0, text.rfind("@", start + 1, path.start() if path else len(text)))


def _without_web_query(text: str) -> str:
    done = 0
    for scheme in _WEB.finditer(text):
        if scheme.end() <= done:
            continue
        query = _QUERY_START.search(text, scheme.end())
        if query is None:
            break
        done = query.end()
        if done < len(text) and not text.startswith(HIDDEN, done):
            return f"{text[: query.start()]}?{HIDDEN}"
    return text


def _without_query(text: str) -> str:
    scheme = _SCHEME.search(text)
    for query in () if scheme is None else _QUERY_START.finditer(text, scheme.end()):
        if _PAIR.match(text, query.end()) or _LONG_WORD.match(text, query.end()):
            return f"{text[: query.start()]}?{HIDDEN}"
    return text


def _is_container(scheme: str, user: str) -> bool:
    return scheme.lower() in _CONTAINERS and ":" not in user and "@" not in user


def _url_secrets(text: str) -> list[str]:
    scheme, found = _SCHEME.match(text), list[str]()
    if scheme is None:
        return found
    at = _end_of_user(text, scheme.end(), text.rfind("@"))
    user = text[scheme.end() : at] if at else ""
    if user and not _is_container(scheme[1], user):
        name, colon, password = user.partition(":")
        found += [password, *(part for part in (name, user) if len(part) >= _LONG or not colon)]
        text = text[at + 1 :]
    for part in re.split(r"[?#&;]", text)[1:]:
        name, equals, value = part.partition("=")
        odd = re.search(rf"[{_END}]", part) is not None
        if equals and (names_secret(name) or len(value) >= 16 or odd):
            found.append(value)
        elif not equals and (len(name) >= 16 or odd):
            found.append(name)
    return found


@lru_cache(maxsize=512)
def _of_variable(name: str, value: str) -> tuple[str, ...]:
    """All of a variable of the environment, by its name, or the secrets of a URL or connection string."""
    parts = [found["value"] for found in _IN_CONNECTION.finditer(value)] + _url_secrets(value)
    if names_secret(name) and not _PLACES.search(name):
        parts.append(value)
    # A short one is a word like "true" and many digits a count, which would be cut out of everything.
    return tuple(part for part in parts if len(part) >= _LONG and not (part.isdigit() and len(part) < 16))


def _hidden() -> re.Pattern[str] | None:
    environment = {each for name, value in os.environ.items() for each in _of_variable(name, value)}
    forms = {form for secret in _given | environment for form in _forms(secret) if len(form) >= 4}
    if not forms:
        return None
    words = sorted(forms, key=len, reverse=True)
    return re.compile("|".join(_pattern(word) for word in words))


def _pattern(word: str) -> str:
    """A short secret is hidden only as a whole word: its letters may occur in any digest."""
    return re.escape(word) if len(word) >= _LONG else rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])"


def _forms(secret: str) -> set[str]:
    forms = {secret, unquote(secret), quote(secret, safe=""), quote(secret), html.escape(secret), repr(secret)[1:-1]}
    return forms | {json.dumps(form)[1:-1] for form in forms}


def _under_secret_names(options: Any, secret: bool = False) -> list[str]:
    if isinstance(options, dict):
        return [
            text
            for name, value in options.items()
            for text in _under_secret_names(value, secret or names_secret(str(name)))
        ]
    if isinstance(options, list | tuple):
        return [text for value in options for text in _under_secret_names(value, secret)]
    if isinstance(options, bytes):
        options = options.decode(errors="replace")
    return [options] if secret and isinstance(options, str) else []
