"""The gate's language: what it means, what it refuses, and that nothing but it is ever carried out."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkern as sk
from streamkern.registry.promotion_gate import (
    CLASSIFICATION_GATE,
    MAX_EXPRESSION_LENGTH,
    MAX_NESTING,
    REGRESSION_GATE,
    Gate,
    default_gate,
)

ONE = {"accuracy": 0.91, "mse": 0.1, "n_test": 1000.0, "drift.max_psi": 0.3}
OTHER = {"accuracy": 0.912, "mse": 0.2, "n_test": 1000.0}


@pytest.mark.parametrize(
    ("expression", "passed"),
    [
        ("accuracy >= champion", False),
        ("accuracy >= champion - 0.002", True),
        ("champion - 0.002 <= accuracy", True),
        ("accuracy >= champion - 0.001", False),
        ("accuracy >= (champion - 0.002) and n_test >= 1000", True),
        ("accuracy >= champion or mse < champion", True),
        ("not accuracy >= champion", True),
        ("not (accuracy >= champion or mse < champion)", False),
        ("accuracy > 1 or accuracy < 1 and mse > 1", False),  # and binds closer than or
        ("mse <= champion.mse * 0.5", True),
        ("mse - 0.1 == 0", True),
        ("1 - 2 - 3 == -4", True),
        ("8 / 2 / 2 == 2", True),
        ("1 + 2 * 3 == 7", True),
        ("(1 + 2) * 3 == 9", True),
        ("- -accuracy == .91e0", True),
        ("accuracy != 9.1e-1", False),
        ("drift.max_psi < 0.25", False),
        ("accuracy / (mse - 0.1) > 1", False),  # division by zero
        ("not accuracy / (mse - 0.1) > 1", False),  # nor does its contrary pass
    ],
)
def test_means_what_it_says(expression: str, passed: bool):
    verdict = Gate(expression).judge(ONE, OTHER)
    assert verdict.passed == passed
    assert verdict.reasons


def test_every_comparison_is_explained():
    verdict = Gate("accuracy >= champion - 0.002 and n_test >= 5000").judge(ONE, OTHER)
    assert verdict.reasons == (
        "accuracy >= champion - 0.002: 0.91 >= 0.91 is true",
        "n_test >= 5000: 1000 >= 5000 is false",
    )


@pytest.mark.parametrize(
    ("expression", "passed"),
    [
        ("accuracy >= champion", True),
        ("not accuracy >= champion", True),
        ("accuracy >= champion and n_test >= 1000", True),
        ("accuracy >= champion and n_test > 1000", False),
        ("accuracy >= champion or n_test > 1000", True),
        ("n_test > 1000", False),
    ],
)
def test_without_a_champion_the_rest_decides(expression: str, passed: bool):
    assert Gate(expression).judge(ONE, None).passed == passed


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("expression", ["accuracy >= 0", "not accuracy >= 0", "accuracy < 0 or n_test > 0"])
def test_what_is_not_a_number_never_passes(expression: str, bad: float):
    assert not Gate(expression).judge(ONE | {"accuracy": bad}, OTHER).passed


@pytest.mark.parametrize(
    ("expression", "position", "words"),
    [
        ("", 1, "ends where a value"),
        ("accuracy >=", 12, "ends where a value"),
        ("  accuracy >=\n", 12, "ends where a value"),
        ("accuracy >= champion )", 22, "not expected here"),
        ("(accuracy >= 1", 1, "not closed"),
        ("accuracy", 1, "is a number"),
        ("champion", 1, "compared with nothing"),
        ("champion >= 0.9", 1, "which metric"),
        ("accuracy + mse >= champion", 19, "which metric"),
        ("accuracy >= 1 >= 2", 18, "too many"),
        ("(accuracy >= 1) + 2 > 3", 1, "is a comparison"),
        (" accuracy & 1", 1, "accuracy & 1 is not expected"),
        ("accuracy >= __import__('os')", 13, "not expected"),
        ("accuracy >= (lambda: 1)()", 13, "not expected"),
        ("accuracy >= 'a'", 13, "not expected"),
        ("accuracy >= 1j", 13, "not expected"),
        ("accuracy >= mse[0]", 13, "not expected"),
        ("accuracy in mse", 1, "not expected"),
        ("accuracy >= 1 and and", 19, "and is not expected"),
        ("accuracy >= 1e999", 13, "finite"),
        ("accuracy >= ١", 13, "not expected"),
        ("accuracy = 1", 10, "not expected"),
        ("True", 1, "not a number"),
        ("accuracy >= None", 13, "not a number"),
        ("not False", 5, "not a number"),
    ],
)
def test_an_error_shows_where(expression: str, position: int, words: str):
    with pytest.raises(sk.UsageError, match=words) as caught:
        Gate(expression)
    where = (caught.value.where or "").splitlines()
    assert where[0] == f"position {position}"
    assert where[-1].index("^") - 4 == position - 1
    assert caught.value.expected


@pytest.mark.parametrize("expression", ["auc > 0", "accuracy > champion.auc", "accuracy.__class__ > 0"])
def test_an_unknown_metric_is_told_with_those_there_are(expression: str):
    with pytest.raises(sk.UsageError, match="no metric") as caught:
        Gate(expression).judge(ONE, OTHER)
    assert "accuracy" in (caught.value.expected or "")


@pytest.mark.parametrize(
    "expression", ["acuracy > 0", "accuracy > champion.acuracy", "recal.yes > 0", "champion.p_value > 0"]
)
def test_an_unknown_metric_is_found_before_there_are_values(expression: str):
    with pytest.raises(sk.UsageError, match="no metric"):
        Gate(expression).require(["accuracy", "recall.LABEL", "p_value"], ["accuracy", "recall.LABEL"])
    Gate("recall.yes > champion.recall.no or p_value > 0").require(["recall.LABEL", "p_value"], ["recall.LABEL"])


def test_size_and_depth_are_bounded():
    with pytest.raises(sk.UsageError, match="characters"):
        Gate("accuracy > 1" + " " * MAX_EXPRESSION_LENGTH)
    with pytest.raises(sk.UsageError, match="not expected"):
        Gate("(" * 300 + "1" + ")" * 300 + " > 0")
    with pytest.raises(sk.UsageError, match="deep"):
        Gate("-" * (MAX_NESTING + 1) + "1 < 0")
    assert Gate("(" * MAX_NESTING + "1" + ")" * MAX_NESTING + " > 0").judge(ONE, OTHER).passed
    assert Gate("-" * MAX_NESTING + "1 > 0").judge(ONE, OTHER).passed
    long = "+".join("1" * ((MAX_EXPRESSION_LENGTH - 10) // 2)) + " > 0"
    assert Gate(long).judge(ONE, OTHER).passed


def test_defaults_can_be_read_and_keep_what_is_better():
    sure, noise = {"p_value": 0.01}, {"p_value": 0.18}
    for gate in (default_gate("classification"), default_gate("regression")):
        assert gate.expression in (CLASSIFICATION_GATE, REGRESSION_GATE.format("mse"))
        assert gate.judge(OTHER | sure, OTHER).passed
    for task, worse in (("classification", {"accuracy": 0.9}), ("regression", {"mse": 0.21})):
        assert not default_gate(task).judge(ONE | worse | sure, OTHER).passed
        assert default_gate(task).judge(ONE | worse | noise, OTHER).passed


@given(st.text(alphabet="accuracymse champion.notandor<>=!+-*/()019e_'\"[]{}:;,\\\n", max_size=60))
def test_any_text_is_read_or_refused(text: str):
    with contextlib.suppress(sk.UsageError):
        Gate(text).judge(ONE, OTHER)


# Random expressions in both languages: ours, and Python's on the same text.
_numbers = st.sampled_from(["accuracy", "mse", "n_test", "2", "0.5", "3.25"])
_sums = st.recursive(
    _numbers, lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner), max_leaves=6
)
_comparisons = st.builds("{} {} {}".format, _sums, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), _sums)
_expressions = st.recursive(
    _comparisons,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("(not {})".format, inner),
    ),
    max_leaves=6,
)


@given(_expressions)
def test_agrees_with_python_on_what_both_can_say(expression: str):
    expected = eval(expression, {"__builtins__": {}}, dict(ONE))
    assert Gate(expression).judge(ONE, OTHER).passed == expected


def test_metrics_of_a_class_are_names():
    gate = Gate("recall.fraud >= champion - 0.01 and auc >= champion.auc")
    before = {"recall.fraud": 0.5, "auc": 0.8}
    assert gate.judge({"recall.fraud": 0.495, "auc": 0.8}, before).passed
    assert not gate.judge({"recall.fraud": 0.4, "auc": 0.9}, before).passed
    undefined = gate.judge({"recall.fraud": 0.5, "auc": 0.9}, {"recall.fraud": 0.5, "auc": float("nan")})
    assert not undefined.passed


def test_an_error_lists_metrics_of_classes_only_where_they_are_few():
    many = {f"recall.class_{i}": 0.1 for i in range(200)} | {"accuracy": 0.5}
    with pytest.raises(sk.UsageError, match="one of accuracy") as error:
        Gate("acc >= 0.5").judge(many, None)
    assert "class_7" not in str(error.value)
