"""The resources that a command's words give."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import fields

from streamkern.gpu import get_device
from streamkern.resources import Resources


def resources_of(args: Namespace) -> Resources:
    """Return the resources of a command; a device that is not there is an error before anything is read."""
    given = {field.name: getattr(args, field.name, None) for field in fields(Resources)}
    resources = Resources(**{name: value for name, value in given.items() if value is not None})
    get_device(resources.device)
    return resources
