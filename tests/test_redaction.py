"""Secrets: in whatever part of a URL, a setting or an option one stands, nothing that is written holds it."""

import contextlib
import html
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import streamkern as sk
from streamkern import redaction
from streamkern.commands.parser import main
from streamkern.errors import StorageError
from streamkern.events import EventLog
from streamkern.formats.open_tables import open_tables
from streamkern.redaction import keep_option_secrets, keep_setting_secrets, keep_url_secrets, names_secret, redacted
from streamkern.report import read_run
from streamkern.storage.atomic_writes import write_json
from tests.clock import require_quick
from tests.faults import FaultyServer

SECRET = "S3cr3tW0rd"

SHAPES = [
    # text, and words of it that stay
    (f"s3://KEY:{SECRET}@bucket/k.parquet", "bucket/k.parquet"),
    (f"s3://KEY:ab/{SECRET}@bucket/k", "@bucket/k"),
    (f"s3://KEY:ab@{SECRET}@bucket/k", "@bucket/k"),
    (f"s3://{SECRET}@bucket/k", "@bucket/k"),
    (f"s3://bucket/k?sig={SECRET}", "s3://bucket/k"),
    (f"s3://bucket/part-?.parquet?sig={SECRET}", "s3://bucket/part-?.parquet"),
    (f"s3://bucket/k?{SECRET}", "s3://bucket/k"),
    (f"gs://bucket/k#access_token={SECRET}", "gs://bucket/k"),
    (f"https://user:{SECRET}@host:8443/a.csv", "host:8443/a.csv"),
    (f"https://{SECRET}@host/a.csv", "host/a.csv"),
    (f"https://host/a.csv?X-Amz-Signature={SECRET}&b=1", "host/a.csv"),
    (f"https://host/a.csv#{SECRET}", "host/a.csv"),
    (f"HTTPS://user:{SECRET}@host/a.csv?x={SECRET}", "host/a.csv"),
    (f"S3://KEY:{SECRET}@bucket/k?Sig={SECRET}", "bucket/k"),
    (f"ftp://user:{SECRET}@host/a.csv", "host/a.csv"),
    (f"ftp://host/a.csv?password={SECRET}", "host/a.csv"),
    (f"sftp://user:{SECRET}@host/a.csv", "host/a.csv"),
    (f"abfs://container@account.dfs.core.windows.net/a?sv=1&sig={SECRET}", "container@account.dfs"),
    (f"abfss://name:{SECRET}@account/a", "account/a"),
    (f"az://container/a.parquet?sp=r&sig={SECRET}", "az://container/a.parquet"),
    (f"gcs://bucket/a?token={SECRET}", "gcs://bucket/a"),
    (f"simplecache::s3://KEY:{SECRET}@bucket/k", "simplecache"),
    (f"zip://inside.csv::https://user:{SECRET}@host/a.zip?t={SECRET}", "host/a.zip"),
    (f"hdfs://user:{SECRET}@namenode:9000/a", "namenode:9000/a"),
    (f"404, url='http://host/a.parquet?X-Amz-Credential={SECRET}&b=1' was refused", "was refused"),
    (f'{{"url": "s3://KEY:{SECRET}@b/k?sig={SECRET}", "rows": 3}}', '"rows": 3}'),
    (f"<a href='https://host/x?sas={SECRET}'>here</a>", "'>here</a>"),
    (f"AccountName=me;AccountKey={SECRET};Suffix=core", "Suffix=core"),
    (f"GET /bucket/k?X-Amz-Signature={SECRET} answered 403", "answered 403"),
    (f"Authorization: Bearer {SECRET}", "Authorization"),
]


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_given", set())


@pytest.mark.parametrize(("text", "kept"), SHAPES, ids=[text.replace(SECRET, "S") for text, _ in SHAPES])
def test_a_secret_is_hidden_by_its_shape(text: str, kept: str):
    shown = redacted(text)
    assert SECRET not in shown
    assert kept in shown
    assert redacted(shown) == shown
    assert SECRET not in str(StorageError(text, where=text, expected=text, remedy=text))


@pytest.mark.parametrize(
    "text",
    [
        "/data/part-?.parquet",
        "s3://bucket/year=*/part-?.parquet",
        "s3://bucket/d?/year=2020/x.parquet",
        "s3://bucket/photo@2x.png",
        "abfs://container@account.dfs.core.windows.net/rows.parquet",
        "tcp://127.0.0.1:8786",
        "column 'key', row 12: 'Oslo'",
        "sk.Laplace(bandwidth=2.0), passes=3",
        "https://host/rows.parquet, row group 5",
    ],
)
def test_what_is_no_secret_stays(text: str):
    assert redacted(text) == text


@pytest.mark.parametrize(
    "piece", ["s3:/", "s3://", "s3://a?", "s3://a@", "s3:/a:b", "http://", "http://?", "s3://a:b@?"]
)
def test_a_text_of_schemes_takes_linear_time(piece: str):
    text = piece * 20_000
    require_quick(lambda: redacted({"settings": [text, f"{text} {text}"]}), 1)  # 5,000 took 3 s


def test_names_of_secrets():
    for name in ("token", "password", "secret", "key", "api_key", "apiKey", "accessKey", "AWS_SECRET", "db-password"):
        assert names_secret(name), name
    for name in ("passes", "keyword", "monkey", "author", "compass", "rows", "bandwidth", "signal", "sassy"):
        assert not names_secret(name), name


def test_settings_are_hidden_by_name_and_what_they_held_is_hidden_everywhere():
    keep_setting_secrets({"token": "pa ss/'w", "rows": "1000", "path": "s3://KEY:q w'e@b/k?sig=x y"})
    for text in ("pa ss/'w", "q w'e", "x y"):
        told = {"what": [f"cannot use {text!r}", json.dumps(text), quote(text, safe="")], "settings": {"token": text}}
        shown = json.dumps(redacted(told))
        assert not [form for form in (text, repr(text)[1:-1], quote(text, safe="")) if form in shown] or len(text) < 4
    assert redacted({"settings": {"token": "ab", "rows": "1000"}}) == {"settings": {"token": "***", "rows": "1000"}}
    assert redacted("1000 rows of s3://b/k") == "1000 rows of s3://b/k"


def test_options_and_urls_are_hidden_by_value():
    client = {"aws_secret_access_key": b"bytes-of-it", "region": "eu-1"}
    keep_option_secrets({"key": "AKID1234", "client_kwargs": client})
    keep_url_secrets("https://me:word-word@host/x?v=1")
    assert redacted("AKID1234, bytes-of-it, word-word, eu-1, v=1, me") == "***, ***, ***, eu-1, v=1, me"
    keep_url_secrets("no url: token=x")
    keep_setting_secrets({"token": "beef"})  # a short one could be part of any digest
    assert redacted("beef, deadbeef00") == "***, deadbeef00"


def test_every_writer_leaves_them_out(tmp_path: Path):
    text = f"s3://KEY:{SECRET}@b/k?sig={SECRET}"
    heard: list[str] = []
    with EventLog(tmp_path / "e", (lambda kind, fields: heard.append(str(fields)),), lambda: {"at": text}) as events:
        events.emit("warning", message=text, nested={"list": [text, (text,)], "path": Path(text)})
    write_json(tmp_path / "j", {"a": {"b": [text]}, "path": Path(text), "settings": {"token": SECRET}})
    assert SECRET not in "".join(path.read_text() for path in tmp_path.iterdir())
    assert text not in heard[0]


KEYS = ["AZURE_STORAGE_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "PGPASSWORD", "DB_PASSWORD",
        "SSHPASS_PW", "MY_PASSPHRASE", "REGISTRY_AUTH", "SAS"]  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_a_variable_of_the_environment_is_hidden_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, f"{SECRET}/+=")
    told = f"cannot open {SECRET}/+= with {quote(SECRET + '/+=', safe='')!r}"
    for text in (redacted(told), str(StorageError(told)), json.dumps(redacted({"account": [f"{SECRET}/+="]}))):
        assert SECRET not in text


@pytest.mark.parametrize(
    "value",
    [
        f"DefaultEndpointsProtocol=https;AccountName=me;AccountKey={SECRET};EndpointSuffix=core.windows.net",
        f"BlobEndpoint=https://me.blob.core.windows.net;SharedAccessSignature={SECRET}",
        f"Server=db;User Id=me;Password={SECRET};",
        f"postgresql://me:{SECRET}@db/rows",
        f"http://proxy-user:{SECRET}@proxy:3128",
    ],
    ids=["key", "signature", "password", "database", "proxy"],  # pytest has them in a variable of the environment
)
def test_a_secret_inside_a_variable_is_hidden_alone(value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANY_NAME", value)
    assert SECRET not in redacted(f"the server refused {SECRET}, and {value}")
    monkeypatch.delenv("ANY_NAME")
    assert redacted(f"the server refused {SECRET}") == f"the server refused {SECRET}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PWD", "/home/somebody/rows"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/somebody/rows"),
        ("SSH_AUTH_SOCK", "/home/somebody/rows"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/home/somebody/rows"),
        ("KEYBOARD", "/home/somebody/rows"),
        ("SORT_KEY", "rows"),
        ("MAX_TOKENS", "100000000"),
    ],
)
def test_a_place_a_word_and_a_count_are_no_secret(name: str, value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, value)
    assert redacted(f"cannot open {value}") == f"cannot open {value}"


# ------------------------------------------------------------------------------------------------------------- a run

FILE = """
import numpy as np
import streamkern as sk


def pipeline(url: str = "", token: str = "", key: str = "", fail: bool = False, refuse: bool = False) -> sk.Pipeline:
    '''A pipeline that tells its secrets.'''
    if refuse:
        raise ValueError(f"cannot use {url!r} and {token!r} and {key}")

    def tell(X, U):
        if fail:
            raise RuntimeError(f"cannot read {url!r} with {token!r} and {key}")
        return X

    X = np.random.default_rng(0).standard_normal((40, 2)).astype("float32")
    data = sk.from_arrays(X, X[:, 0]).augment(sk.augment.Custom(tell))
    solver = sk.EigenPro(epochs=1, batch=20)
    return sk.Pipeline(data, sk.Laplace(1.0), sk.Uniform(5), solver, task="regression", name="told")
"""

PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
IN_URLS = PLAIN + "-._~+%"
ANY = IN_URLS + "/@:?#=&'\" <>\\,;!é"

LETTERS = {  # of a secret in each place
    "s3://{}@bucket/rows.parquet": IN_URLS,
    "s3://KEY:{}@bucket/rows.parquet": ANY,
    "FTP://{}:pw@host/rows.csv": IN_URLS,
    "abfs://c:{}@a.dfs.core.windows.net/x": ANY,
    "az://c/x.parquet?sv=1&sig={}": ANY,
    "gs://b/x?what={}": IN_URLS,
    "https://h/x.csv?{}": IN_URLS,
    "s3://b/k?{}": PLAIN,
    "https://h/x.csv#{}": IN_URLS,
    "token": ANY,
    "key": ANY,
}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "told.py").write_text(FILE)
        yield Path(folder)


def words(place: Path, shape: str, secret: str) -> list[str]:
    setting = f"{shape}={secret}" if shape in ("token", "key") else f"url={shape.format(secret)}"
    return [str(place / "told.py"), "--set", setting]


@pytest.mark.slow
@pytest.mark.parametrize("shape", LETTERS)
@settings(max_examples=2, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_secret_is_in_any_artefact_of_a_run(place: Path, shape: str, data: st.DataObject):
    # The beginning is found in nothing that a run writes; the end is no space, which a command line would keep.
    secret = f"Zq7{data.draw(st.text(LETTERS[shape], min_size=5, max_size=20))}z"
    redaction._given.clear()
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run_dir = ["--run-dir", f"{folder}/run", "--threads", "1"]
        given = words(place, shape, secret)
        assert main(["run", *given, "fail=true", *run_dir]) != 0
        assert main(["run", *given, *run_dir]) == 0
        assert main(["report", f"{folder}/run"]) == 0
        assert main(["resume", f"{folder}/run"]) == 2  # a secret is not kept
        assert main(["plan", *given, "refuse=true"]) != 0
        written = [path.read_bytes().decode("latin-1") for path in Path(folder).rglob("*") if path.is_file()]
    written += [out.getvalue(), err.getvalue()]
    forms = {secret, quote(secret, safe=""), repr(secret)[1:-1], json.dumps(secret)[1:-1], html.escape(secret)}
    forms |= {form.encode().decode("latin-1") for form in forms}
    assert not [form for form in forms for text in written if form in text]
    assert "cannot read" in err.getvalue()


@pytest.mark.slow
def test_a_variable_given_as_a_setting_is_in_no_artefact(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Under a name that says nothing: the value is known from the environment."""
    secret = f"Zq7+/{SECRET}=="
    monkeypatch.setenv("AZURE_STORAGE_KEY", secret)
    out, err = io.StringIO(), io.StringIO()
    given = [str(place / "told.py"), "--set", f"url={secret}"]
    run = ["--run-dir", str(tmp_path / "run"), "--threads", "1"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main(["run", *given, "fail=true", *run]) != 0
        assert main(["run", *given, *run]) == 0
        assert main(["report", str(tmp_path / "run")]) == 0
        assert main(["plan", *given, "refuse=true"]) != 0
        assert main(["retrain", *given, "--registry", str(tmp_path / "models"), "--threads", "1"]) in (0, 2)
        assert main(["tune", *given, "--run-dir", str(tmp_path / "tune"), "--rows", "40"]) in (0, 1, 2)
        assert main(["ingest", f"s3://b/k?x={secret}", str(tmp_path / "o.zarr"), "--target", "y"]) != 0
    written = [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    for text in (*written, out.getvalue(), err.getvalue()):
        assert SECRET not in text


def test_a_secret_of_a_retraining_is_not_in_its_registry(tmp_path: Path):
    text = FILE.replace('name="told")', 'name="told", test=sk.from_arrays(X, X[:, 0]))')
    (tmp_path / "told.py").write_text(text)
    out, err = io.StringIO(), io.StringIO()
    given = [str(tmp_path / "told.py"), "--set", f"url=s3://KEY:a/{SECRET}@b/k?sig={SECRET}", f"token={SECRET}more"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        common = ["--registry", str(tmp_path / "models"), "--threads", "1", "--gate", "mse < 100"]
        assert main(["retrain", *given, *common]) == 0
        assert main(["retrain", *given, "fail=true", *common]) == 1
        assert main(["models", str(tmp_path / "models"), "show"]) == 0
    files = [p for p in (tmp_path / "models").rglob("*") if p.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert SECRET not in out.getvalue() + err.getvalue()
    assert json.loads(out.getvalue().splitlines()[0])["status"] == "promoted"


def test_a_run_directory_of_an_earlier_release_is_reported_without_them(tmp_path: Path):
    data = {"run": "1", "name": "n", "settings": {"token": SECRET, "url": f"ftp://u:{SECRET}@h/x"}}
    (tmp_path / "manifest.json").write_text(json.dumps(data))
    line = {"time": 1.0, "event": "warning", "message": f"s3://k:{SECRET}@b/k"}
    (tmp_path / "events.jsonl").write_text(json.dumps(line) + "\n")
    record = read_run(tmp_path)
    assert SECRET not in str(record.manifest)
    assert SECRET not in str(record.events)


def test_a_renewed_signature_leaves_the_fingerprint_as_it_is(tmp_path: Path):
    """Rows are what they are, whoever may read them: else a run would begin anew with every signature."""
    X = np.arange(12.0).reshape(6, 2)
    sk.write_parquet(tmp_path / "rows.parquet", X, np.arange(6), row_group_rows=3)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    with FaultyServer(tmp_path) as server:
        for name in ("rows.parquet", "rows.csv"):
            opened = [open_tables([f"{server.url}/{name}?sig={sig}{SECRET}"]) for sig in ("one", "two")]
            assert opened[0].fingerprint == opened[1].fingerprint
