"""The commands of the command line, a function each; the parser imports the module of a given command."""

from __future__ import annotations
