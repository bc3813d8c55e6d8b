"""What a refused plan says would fit does fit, and is the most that does."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.costs.fit_shape import FitShape
from streamkern.costs.footprint import Footprint, footprint
from streamkern.fitting.stages import SOLVING
from streamkern.resources import default_threads

MIB = 1 << 20
DATA = sk.from_arrays(np.zeros((20_000, 300), dtype=np.float32), np.arange(20_000) % 10)


def project(**changes: Any) -> Footprint:
    given = {"p": 500, "solver": sk.EigenPro(), "budget": 1 << 30, "baseline": 200 * MIB, "slots": 2, "lanes": 4}
    settings = given | changes
    return footprint(FitShape(DATA, settings.pop("p"), 10, settings.pop("solver"), **settings), SOLVING)


CASES: dict[str, dict[str, Any]] = {
    "centers": {"p": 60_000, "budget": 600 * MIB},
    "projection": {"p": 9000, "budget": 800 * MIB, "solver": sk.EigenPro(projection="exact")},
    "batch": {"budget": 500 * MIB, "solver": sk.EigenPro(batch=200_000)},
    "threads": {"budget": 600 * MIB, "slots": 24},
}


def offers(case: dict[str, Any]) -> dict[str, str]:
    """What the error of a case offers, by name."""
    with pytest.raises(sk.errors.PlanRefusedError) as caught:
        project(**case)
    remedy = str(caught.value.remedy).replace(",", "")
    found = {name: found[1] for name in ("batch", "lanes") if (found := re.search(rf"use {name}=(\d+)", remedy))}
    for name, pattern in {
        "centers": r"use at most (\d+) centers",
        "projection": r'projection="(\w+)"',
        "threads": r"use (\d+) thread",
    }.items():
        if each := re.search(pattern, remedy):
            found[name] = each[1]
    # More threads than cores need no more memory, but fewer of them.
    assert remedy.startswith("raise memory to ") or case.get("slots", 0) > default_threads()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_each_offer_fits_by_itself_and_one_more_does_not(name: str) -> None:
    case = CASES[name]
    offered = offers(case)
    assert name in offered
    solver = case.get("solver", sk.EigenPro())
    for each, value in offered.items():
        if each == "projection":
            project(**case | {"solver": sk.EigenPro(projection=value)})
            continue

        def change(number: int, each: str = each) -> dict[str, Any]:
            if each == "batch":
                return {"solver": sk.EigenPro(projection=solver.projection, batch=number)}
            return {{"centers": "p", "threads": "slots", "lanes": "lanes"}[each]: number}

        project(**case | change(int(value)))
        if each == "threads" and int(value) == default_threads():
            continue  # more would fit, and gain nothing
        with pytest.raises(sk.errors.PlanRefusedError):
            project(**case | change(int(value) + 1))


@pytest.mark.parametrize("projection", ["packed", "exact"])
def test_no_number_of_centers_fits_and_the_refusal_is_still_a_refusal(projection: str) -> None:
    """The search for fewer centers comes to numbers that EigenPro itself refuses."""
    with pytest.raises(sk.errors.PlanRefusedError, match="may use") as caught:
        project(p=60_000, budget=230 * MIB, solver=sk.EigenPro(projection=projection))
    assert "centers (or features)" not in str(caught.value.remedy)


def test_no_room_at_all_is_said_so() -> None:
    with pytest.raises(sk.errors.PlanRefusedError, match="the Python process alone holds more than this"):
        project(budget=100 * MIB)
