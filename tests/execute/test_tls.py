"""A cluster that speaks TLS only, with certificates made here, and who may talk to it."""

import shutil
import subprocess
import time

import dask
import numpy as np
import pytest

from streamkern.errors import StorageError, UsageError
from streamkern.execute import open_executor
from streamkern.testing.executor import expected_weights, small_weights

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificates, and is missing"
)


def authority(folder):
    """A certificate authority and one certificate of it, which is everybody's: as Dask's settings."""
    folder.mkdir()

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-subj", "/CN=authority", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *key, "-subj", "/CN=cluster", "-keyout", "own.key", "-out", "own.csr")
    openssl(
        "x509", "-req", "-in", "own.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
        "-out", "own.pem",
    )  # fmt: skip
    settings = {"comm.require-encryption": True, "comm.tls.ca-file": str(folder / "ca.pem")}
    for role in ("scheduler", "worker", "client"):
        settings[f"comm.tls.{role}.cert"] = str(folder / "own.pem")
        settings[f"comm.tls.{role}.key"] = str(folder / "own.key")
    return {f"distributed.{name}": value for name, value in settings.items()}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return authority(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def secure(new_cluster, certificates):
    # What a user would export where the scheduler and the workers start.
    words = {name: name.upper().replace(".", "__").replace("-", "_") for name in certificates}
    cluster = new_cluster("tls", {f"DASK_{words[name]}": str(value) for name, value in certificates.items()})
    with dask.config.set(certificates):
        cluster.keep(2)
    return cluster


@pytest.mark.slow
def test_weights_over_tls_are_those_of_one_thread(secure, certificates):
    assert secure.address.startswith("tls://")
    with dask.config.set(certificates), open_executor(secure.address, 1) as executor:
        assert all(worker.startswith("tls://") for worker in executor.workers)
        np.testing.assert_array_equal(small_weights(executor, "exact"), expected_weights("exact"))


def refused(address):
    start = time.monotonic()
    with pytest.raises((UsageError, StorageError)) as caught, open_executor(address, 1):
        pass
    assert time.monotonic() - start < 30
    return str(caught.value)


def test_who_has_no_certificate_is_told_how_to_give_one(secure):
    assert "distributed.comm.tls" in refused(secure.address)


def test_a_certificate_of_another_authority_opens_nothing(secure, tmp_path):
    with dask.config.set(authority(tmp_path / "other")):
        message = refused(secure.address)
    assert "certificates are of the authority" in message


def test_plain_tcp_opens_nothing(secure):
    assert "No Dask scheduler answered" in refused(secure.address.replace("tls://", "tcp://"))
