"""Secrets stay out of whatever is written: errors, events, manifests, results, reports and records of a registry.

There is one function, ``redacted``, and every writer calls it. It hides user information and queries of URLs by their
shape; and, by value, whatever this process has been given as a secret: passwords and signatures in URLs, settings and
storage options with the name of a secret, and such variables of the environment.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
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
_SCHEME = r"[A-Za-z][A-Za-z0-9+.\-]{1,30}:/{1,2}"
_END = r"\s'\"<>\\"  # what ends a URL within a text
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs", "az", "adl")  # scheme://container@account: no secret

_USER = re.compile(rf"({_SCHEME})([^/?#@{_END}]*:[^{_END}]*|[^/?#{_END}]+)@")
_WEB_QUERY = re.compile(rf"((?:https?|wss?)://[^?#{_END}]*)[?#](?!\*\*\*)[^{_END}]+", re.IGNORECASE)
# In other stores a "?" may be part of a glob, and a "#" of a name: a query has name=value, or is one long word.
_QUERY = re.compile(rf"({_SCHEME}[^{_END}]*?)[?#](?:[^/?#={_END}]*=[^{_END}]*|[^/.*?#\[\]{_END}]{{8,}}(?=[{_END}]|$))")
_WHOLE_USER = re.compile(rf"({_SCHEME})([^/?#@]*:.*|[^/?#]+)@", re.DOTALL)
_WHOLE_QUERY = re.compile(rf"({_SCHEME}.*?)[?#](?:[^/?#=]*=.*|[^/.*?#\[\]]{{8,}}$)", re.DOTALL)
_ASSIGNED = re.compile(
    r"((?:secret|token|passw(?:or)?d|signature|credential|(?:api|access|account|private)[_\-]?key)[\w.\-]{0,60}"
    rf"|\bsig)(=|[\"']:\s*[\"'])[^&;,{_END}]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{8,}", re.IGNORECASE)

_WORDS = frozenset({"true", "false", "none", "null", "auto", "default"})
_LONG = 8  # letters from which a secret is hidden inside words, too

_given: set[str] = set()


def names_secret(name: str) -> bool:
    """Whether a setting or an option of this name holds a secret, such as ``token``, ``access_key`` or ``apiKey``."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[\s.\-]+", "_", name)
    return _NAMED.search(snake.lower()) is not None


def keep_secret(*values: str) -> None:
    """Hide these texts from now on, wherever they are written; words such as ``true`` and short texts are left."""
    for value in values:
        if len(value) >= 4 and value.lower() not in _WORDS and not (value.isdigit() and len(value) < 6):
            _given.add(value)


def keep_url_secrets(text: str) -> None:
    """Hide from now on the user information and the signatures of a URL; other texts are left alone."""
    if not re.match(_SCHEME, text):
        return
    user = _WHOLE_USER.match(text)
    if user is not None and not _is_container(user):
        name, colon, password = user[2].partition(":")
        keep_secret(password, *(part for part in (name, user[2]) if len(part) >= _LONG or not colon))
        text = text[user.end() :]
    for part in re.split(r"[?#&;]", text)[1:]:
        name, equals, value = part.partition("=")
        odd = re.search(rf"[{_END}]", part) is not None
        if equals and (names_secret(name) or len(value) >= 16 or odd):
            keep_secret(value)
        elif not equals and (len(name) >= 16 or odd):
            keep_secret(name)


def keep_option_secrets(options: Any) -> None:
    """Hide from now on what storage options, nested as they may be, hold under the name of a secret."""
    for value in _under_secret_names(options):
        keep_secret(value)


def keep_setting_secrets(settings: Mapping[str, str]) -> None:
    """Hide from now on the secrets among the settings of a pipeline: by name, and in URLs."""
    for name, value in settings.items():
        if names_secret(name):
            keep_secret(value)
        keep_url_secrets(value)


def redacted(value: T, secrets: Iterable[str] = ()) -> T:
    """Return the value without secrets.

    Args:
        value: text; or numbers, text, dictionaries, lists and tuples of these, as JSON has them. Values of a dictionary
            called ``settings`` or ``storage_options`` are hidden by name as well. Other objects stay as they are.
        secrets: further texts to hide.
    """
    more = tuple(secrets)
    return cast(T, _redacted(value, cache(lambda: _hidden(more))))  # few values hold text: it is made where one does


def _redacted(value: Any, hidden: Callable[[], re.Pattern[str] | None], by_name: bool = False) -> Any:
    """A value without secrets; with ``by_name``, it is a setting or an option, or holds some."""
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
    """Text without secrets; with ``whole``, it may be nothing but a URL, and then holds spaces and quotes."""
    if hidden is not None:
        text = hidden.sub(HIDDEN, text)
    if ":/" in text:
        if whole and re.match(_SCHEME, text):
            text = _WHOLE_USER.sub(_without_user, text, count=1)
            text = _WHOLE_QUERY.sub(rf"\1?{HIDDEN}", text, count=1)
        text = _USER.sub(_without_user, text)
        text = _QUERY.sub(rf"\1?{HIDDEN}", _WEB_QUERY.sub(rf"\1?{HIDDEN}", text))
    return _BEARER.sub(rf"\1 {HIDDEN}", _ASSIGNED.sub(rf"\1\2{HIDDEN}", text))


def _without_user(found: re.Match[str]) -> str:
    return found[0] if _is_container(found) else f"{found[1]}{HIDDEN}@"


def _is_container(found: re.Match[str]) -> bool:
    scheme = found[1].partition(":")[0].lower()
    return scheme in _CONTAINERS and ":" not in found[2] and "@" not in found[2]


def _hidden(more: Iterable[str]) -> re.Pattern[str] | None:
    """Matches the secrets given and those of the environment, as they may be written."""
    environment = {value for name, value in os.environ.items() if re.search("SECRET|TOKEN|PASSW", name.upper())}
    # A short value is a word like "true", which would be cut out of everything.
    known = _given | {each for each in more if len(each) >= 4} | {each for each in environment if len(each) >= _LONG}
    forms = {form for secret in known for form in _forms(secret) if len(form) >= 4}
    if not forms:
        return None
    words = sorted(forms, key=len, reverse=True)
    return re.compile("|".join(_pattern(word) for word in words))


def _pattern(word: str) -> str:
    """A short secret is hidden as a word of its own only: its letters may occur in any digest."""
    return re.escape(word) if len(word) >= _LONG else rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])"


def _forms(secret: str) -> set[str]:
    """A secret as URLs, JSON, HTML and ``repr`` write it."""
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
