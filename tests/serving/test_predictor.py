"""A model that answers many threads at a time, and the example that puts it behind HTTP."""

import asyncio
import http.client
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import streamkern as sk
from tests.clock import require_quick
from tests.modules import module_at

EXAMPLES = Path(__file__).parents[2] / "examples"
X = np.random.default_rng(0).normal(size=(300, 4))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / "model.zarr"
    model = sk.KernelClassifier(kernel=sk.Gaussian(3.0), centers=sk.Uniform(50), solver=sk.Direct(),
                                preprocess=(sk.Standardise(),), dtype="float32")  # fmt: skip
    train = sk.from_arrays(X, np.where(X[:, 0] > 0, "up", "down"), columns=list("abcd"))
    model.fit(train).save(place)
    return place


@pytest.fixture(scope="module")
def predictor(saved: Path) -> sk.Predictor:
    return sk.Predictor(saved, max_rows=200)


def test_answers_are_those_of_the_model(predictor: sk.Predictor, saved: Path):
    model = sk.load_model(saved)
    for rows in (X[:1], X[:100].tolist(), X[:200].astype("float32")):
        predictions, outputs = predictor(rows)
        np.testing.assert_allclose(outputs, model.decision_function(np.asarray(rows)), rtol=1e-5, atol=1e-5)
        assert predictions.tolist() == model.predict(np.asarray(rows)).tolist()
    assert [len(part) for part in predictor([])] == [0, 0]
    assert (predictor.labels, predictor.columns, predictor.n_features) == (["down", "up"], tuple("abcd"), 4)


def test_a_fitted_estimator_is_a_model_behind_every_door(tmp_path: Path):
    y = X[:, 0] + X[:, 1]
    fitted = sk.KernelRegressor(sk.Gaussian(3.0), centers=30, solver=sk.Direct()).fit(X, y)
    np.testing.assert_array_equal(
        sk.Predictor(fitted)(X[:9]).predictions, sk.Predictor(fitted.model_)(X[:9]).predictions
    )
    assert sk.explain(fitted, X[:9]).gradients.shape == (9, 4)
    np.save(tmp_path / "rows.npy", X)
    done = sk.predict(fitted, tmp_path / "rows.npy", tmp_path / "predictions.parquet")
    assert done.rows == len(X)


@pytest.mark.parametrize("given", [sk.KernelRegressor(), 7, None, np.ones(3)])
def test_what_is_no_model_is_an_error_in_words(given: Any, tmp_path: Path):
    np.save(tmp_path / "rows.npy", X)
    for door in (
        sk.Predictor, sk.explain, lambda model: sk.update_model(model, (X, X[:, 0])),
        lambda model: sk.predict(model, tmp_path / "rows.npy", tmp_path / "predictions.csv"),
    ):  # fmt: skip
        with pytest.raises(sk.UsageError, match="is not a trained model"):
            door(given)


def test_many_threads_get_the_answers_of_one(predictor: sk.Predictor):
    parts = [X[i : i + 1 + i % 90] for i in range(200)]
    want = [predictor(part).outputs for part in parts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for one, other in zip(want, pool.map(lambda part: predictor(part).outputs, parts), strict=True):
                np.testing.assert_array_equal(one, other)


BAD: list[tuple[Any, str]] = [
    (X[:201].repeat(2, axis=0), "402 rows"),
    (X[:, :3][:5], r"shape \(5, 3\)"),
    (X[0], r"shape \(4,\)"),
    ([[1, 2, 3, 4], [1, 2, 3]], "different lengths"),
    ([[1, 2, 3, "4"]], "not a number"),
    ([[1, 2, 3, None]], "not a number"),
    ([[1, 2, 3, 10**400]], "not a number"),
    ([[1, 2, 3, [4]]], "not a number"),
    ([[1] * 100_000 + ["a" * 1_000_000]], "not a number"),
    ([[1, 2, 3, float("nan")]], "NaN or infinity"),
    ([[1, 2, 3, 1e300]], "too large: 1e"),
    (5, "shape"),
]


@pytest.mark.parametrize(("rows", "message"), BAD)
def test_what_cannot_be_answered_is_one_error(predictor: sk.Predictor, rows: Any, message: str):
    with pytest.raises(sk.DataError, match=message):
        predictor(rows)


UNLIKE: list[tuple[Any, str]] = [
    ([{"a": 0.5, "b": 0.1}], "columns of training had no names"),
    ([{"b": 0.1, "a": 0.5}], "columns of training had no names"),
    ([{"a": "0.5", "b": 0.1}], "columns of training had no names"),
    ({"a": "0.5", "b": "0.1"}, "columns of training had no names"),
    ([{}], "columns of training had no names"),
    (pd.DataFrame({"a": ["0.5"], "b": [0.1]}), "'a' is text"),
    (pd.DataFrame({"a": pd.Categorical(["0.5"]), "b": [0.1]}), "'a' is text"),
    (pd.DataFrame({"a": pd.to_datetime(["2020-01-01"]), "b": [0.1]}), "'a' is a date"),
    (pa.table({"a": [0.5], "b": [0.1], "c": [3.0]}), "3 features"),
    (pa.table({"a": ["0.5"], "b": [0.1]}), "'a' is text"),
]


@pytest.fixture(scope="module")
def unnamed() -> sk.KernelRegressor:
    return sk.KernelRegressor(sk.Laplace(2.0), 50, sk.Direct()).fit(X[:, :2], 3 * X[:, 0])


@pytest.mark.parametrize(("rows", "message"), UNLIKE, ids=lambda value: str(value)[:40])
def test_every_door_of_a_model_of_numbers_takes_numbers_in_their_order(unnamed, rows, message):
    """The service took "0.5" as a category, keys in any order as columns, and raised an IndexError for a third key."""
    for door in (sk.Predictor(unnamed.model_), unnamed.model_.predict, unnamed.predict):
        with pytest.raises(sk.DataError, match=message):
            door(rows)


# ------------------------------------------------------------------------------------------------------ the example


@pytest.fixture(scope="module")
def example() -> Any:
    return module_at(EXAMPLES / "serve.py")


def asked(app, path, body=b"", method="POST", headers=None):
    """What the application answers, by its protocol."""
    pieces = [body] if isinstance(body, bytes) else body
    given = {"content-type": "application/json", "content-length": str(sum(map(len, pieces)))} | (headers or {})
    messages = [{"type": "http.request", "body": b, "more_body": i + 1 < len(pieces)} for i, b in enumerate(pieces)]
    messages.append({"type": "http.disconnect"})
    scope = {"type": "http", "method": method, "path": path,
             "headers": [(name.encode(), value.encode()) for name, value in given.items()]}  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    start, content = sent
    assert start["type"] == "http.response.start"
    headers_sent = dict(start["headers"])
    assert int(headers_sent[b"content-length"]) == len(content["body"])
    return start["status"], json.loads(content["body"])


def question(rows: Any, **more: Any) -> bytes:
    return json.dumps({"rows": rows, **more}).encode()


def test_the_application_answers(example: Any, predictor: sk.Predictor):
    app = example.Application(predictor)
    status, health = asked(app, "/health", method="GET")
    assert (status, health["status"], health["labels"], health["n_features"]) == (200, "ok", ["down", "up"], 4)
    status, answer = asked(app, "/predict", question(X[:3].tolist(), columns=list("abcd"), scores=True))
    assert status == 200
    assert answer["predictions"] == predictor(X[:3]).predictions.tolist()
    np.testing.assert_allclose(answer["scores"], predictor(X[:3]).outputs)
    body = question(X[:3].tolist())
    assert asked(app, "/predict", [body[:10], body[10:]]) == (200, {"predictions": answer["predictions"]})


@pytest.mark.filterwarnings("ignore:.*did not see:UserWarning", "ignore:.*have a category of 'town'")
def test_rows_as_json_objects_are_found_by_names_and_unseen_categories_are_named(example: Any):
    towns = np.array(["Oslo", "Rome", None], dtype=object)[np.arange(300) % 3]
    table = pd.DataFrame({"town": towns, "area": X[:, 0], "year": X[:, 1]})
    y = np.where(X[:, 0] + (towns == "Rome") > 0.5, "yes", "no")
    model = sk.KernelClassifier(sk.Laplace("median"), 50, solver=sk.Direct()).fit(table, y)
    app = example.Application(sk.Predictor(model.model_))
    rows = [
        {"year": 0.0, "town": "Oslo", "area": 1.0},
        {"town": "Oz", "area": None, "year": 0.0},
        {"town": None, "area": 0.5, "year": 1, "more": 1},
    ]
    status, answer = asked(app, "/predict", question(rows, probabilities=True))
    assert (status, answer["labels"]) == (200, ["no", "yes"])
    np.testing.assert_allclose(answer["probabilities"], model.predict_proba(rows))
    assert answer["unseen_categories"] == {"town": 1}
    assert "unseen_categories" not in asked(app, "/predict", question(rows[:1]))[1]
    for wrong, words in (
        ([{"town": "Oslo", "year": 1.0}], "'area'"),
        ([{"town": None, "area": "much", "year": 1}], "'much' of column 'area'"),
        ([["Oslo", 3, 1], ["Rome"]], ""),
        ([{"town": ["Oslo"], "area": 1, "year": 1}], ""),
    ):
        status, answer = asked(app, "/predict", question(wrong))
        assert status == 422
        assert words in answer["error"]
        assert "year" not in answer["error"]


def test_the_application_without_probabilities_says_so(example: Any, saved: Path):
    model = sk.KernelRegressor(sk.Gaussian(3.0), 50, sk.Direct()).fit(X, X[:, 0])
    app = example.Application(sk.Predictor(model.model_))
    status, answer = asked(app, "/predict", question(X[:2].tolist(), probabilities=True))
    assert status == 422
    assert "probabilities" in answer["error"]


N = 8 << 20


@pytest.mark.parametrize(
    "body",
    [
        b'{"rows":[' + b",".join([b"[" * 900 + b"]" * 900] * (N // 1801 - 1)) + b"]}",
        b'{"rows":[' + b"[]," * (N // 3 - 10) + b"[]]}",
        b'{"rows":[[' + b"[]," * (N // 3 - 10) + b"[]]]}",
        b'{"rows":[[' + b"{}," * (N // 3 - 10) + b"{}]]}",
        b'{"rows":[[1,2,3,4]],"columns":[' + b"[]," * (N // 3 - 20) + b"[]]}",
        b'{"rows":[' + b",".join([b"[" * 60 + b"]" * 60] * 9000) + b"]}",
        b'{"rows":[["' + b"a" * (1 << 20) + b'"' + b",1" * 100_000 + b"]]}",
        b"[" * (N - 10),
    ],
    ids=["deep", "empty rows", "empty values", "objects", "columns", "less deep", "text and numbers", "open"],
)
def test_nested_json_does_not_hold_up_the_application(example: Any, predictor: sk.Predictor, body: bytes):
    app = example.Application(predictor)
    answers = []
    require_quick(lambda: answers.append(asked(app, "/predict", body)), 1)
    status, answer = answers[-1]
    assert status in (400, 413, 422)
    assert answer["error"]


def test_rows_with_brackets_in_the_names_of_their_columns_are_taken(example: Any, saved: Path, tmp_path: Path):
    names = [f"[{i}, {i + 1})" for i in range(4)]
    model = replace(sk.load_model(saved), columns=tuple(names))
    app = example.Application(sk.Predictor(model, max_rows=10))
    assert asked(app, "/predict", question(X[:10].tolist(), columns=names))[0] == 200


@pytest.mark.parametrize(
    ("status", "given"),
    [
        (404, {"path": "/"}),
        (405, {"method": "GET"}),
        (405, {"path": "/health"}),
        (415, {"headers": {"content-type": "text/csv"}}),
        (413, {"headers": {"content-length": "1000000"}}),
        (413, {"headers": {"content-length": "-1"}}),
        (413, {"body": [b" " * 60_000, b" " * 60_000], "headers": {"content-length": "10"}}),
        (413, {"body": question([[1, 2, 3, 4]] * 201)}),
        (400, {"body": b""}),
        (400, {"body": b"{"}),
        (400, {"body": b"\xff"}),
        (400, {"body": b"[" * 50_000}),
        (400, {"body": []}),
        (422, {"body": b"[]"}),
        (422, {"body": b'{"rows": 1}'}),
        (422, {"body": question([[1, 2, 3]])}),
        (422, {"body": question([[1, 2, 3, None]])}),
        (422, {"body": b'{"rows": [[1, 2, 3, NaN]]}'}),
        (422, {"body": question([[1, 2, 3, 4]], columns="abcd")}),
        (422, {"body": question([[1, 2, 3, 4]], columns=list("abdc"))}),
    ],
)
def test_the_application_says_no_in_json(example: Any, predictor: sk.Predictor, status: int, given: dict[str, Any]):
    app = example.Application(predictor, max_bytes=100_000)
    found, answer = asked(app, **{"path": "/predict", "body": question([[1, 2, 3, 4]]), **given})
    assert found == status
    assert answer["error"]


@pytest.mark.slow
def test_the_application_under_a_real_server(saved: Path, predictor: sk.Predictor):
    words = [sys.executable, "-m", "uvicorn", "--factory", "--app-dir", EXAMPLES, "serve:app", "--port", "0"]
    environment = {**os.environ, "MODEL": str(saved), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            line = next(line for line in server.stderr if "running on" in line)
            port = int(line.rpartition("running on http://127.0.0.1:")[2].split()[0])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            for body, status in ((question(X[:5].tolist()), 200), (b"{", 400), (question([[1]]), 422)):
                connection.request("POST", "/predict", body, {"content-type": "application/json"})
                response = connection.getresponse()
                answer = json.loads(response.read())
                assert response.status == status
                if status == 200:
                    assert answer == {"predictions": predictor(X[:5]).predictions.tolist()}
            connection.close()
        finally:
            server.terminate()
        assert server.wait(30) in (0, -15)


def test_explain_leaves_a_url_as_it_is():
    with pytest.raises(sk.StreamkernError, match="memory://nowhere"):
        sk.explain("memory://nowhere/registry")


def test_a_file_of_one_long_line_in_place_of_predictions_is_not_overwritten(saved: Path, tmp_path: Path):
    np.save(tmp_path / "rows.npy", X)
    (tmp_path / "out.csv").write_text("a" * 200_000)
    with pytest.raises(sk.StreamkernError, match="exists"):
        sk.predict(saved, tmp_path / "rows.npy", tmp_path / "out.csv")


@pytest.mark.parametrize("rows", [5, (), (X, X[:, 0], None, 3), {"X": X}])
def test_what_is_no_rows_is_an_error_in_words(rows: Any):
    model = sk.KernelRegressor(sk.Laplace(1.0), centers=9, solver=sk.Direct(keep_sums=True)).fit(X, X[:, 0]).model_
    with pytest.raises(sk.UsageError, match="cannot be read as rows with a target"):
        sk.update_model(model, rows)
