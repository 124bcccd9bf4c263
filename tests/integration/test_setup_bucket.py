"""`frazil setup bucket` makes a bucket for a warehouse, and `frazil doctor` says whether it is one."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from frazil.cli.run import run_command
from frazil.doctor import examine
from frazil.errors import UnavailableError
from frazil.settings import load_settings
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage.buckets import BucketState, inspect_bucket, plan_bucket, prepare_bucket
from frazil.storage.s3_client import client_of
from tests.services.kit import Services

NETWORK = NetworkSettings(retry_attempts=1, connect_timeout=1.0)


@pytest.fixture(params=["seaweedfs", pytest.param("moto", marks=pytest.mark.deep)])
def server(request, services: Services) -> Any:
    return services.glue if request.param == "moto" else services.seaweedfs


def s3_of(server: Any, **more: str) -> S3Settings:
    return S3Settings(**{**server.access.settings(), **more})


def new_name() -> str:
    return f"warehouse-{uuid.uuid4().hex[:12]}"


class Setup:
    """Runs the command against a server."""

    def __init__(self, server: Any, folder: Path, capsys: Any) -> None:
        self.server, self._folder, self._capsys = server, folder, capsys

    def flags(self) -> dict[str, str]:
        s3 = {f"s3.{name}": value for name, value in self.server.access.settings().items()}
        return {"home": str(self._folder / "home"), **s3}

    def __call__(self, *args: str) -> tuple[int, Any]:
        given = [word for name, value in self.flags().items() for word in ("--set", f"{name}={value}")]
        code = run_command("setup", "setup", ["bucket", *args, *given, "--output", "json"])
        out, err = self._capsys.readouterr()
        return code, json.loads(out or err)


@pytest.fixture
def setup(server, tmp_path: Path, capsys) -> Setup:
    return Setup(server, tmp_path, capsys)


def test_a_new_bucket_has_versions_and_encryption_and_the_same_again_changes_nothing(setup: Setup):
    name = new_name()
    code, would = setup(name, "--dry-run")
    assert code == 0 and would["would do"] == "create, enable versioning, enable encryption"
    assert not inspect_bucket(name, s3_of(setup.server), NETWORK).exists
    code, made = setup(f"s3://{name}/some/prefix")
    assert code == 0 and made["bucket"] == f"s3://{name}"
    client = client_of(s3_of(setup.server), NETWORK)
    assert client.get_bucket_versioning(Bucket=name)["Status"] == "Enabled"
    (rule,) = client.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    code, again = setup(name)
    assert (code, again["done"]) == (0, "nothing to do")


def test_a_bucket_that_exists_gets_what_it_lacks_and_keeps_its_objects(setup: Setup):
    name, client = new_name(), client_of(s3_of(setup.server), NETWORK)
    client.create_bucket(Bucket=name)
    client.put_object(Bucket=name, Key="mine", Body=b"mine")
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Suspended"})
    code, made = setup(name)
    assert (code, made["done"]) == (0, "enable versioning, enable encryption")
    assert client.get_object(Bucket=name, Key="mine")["Body"].read() == b"mine"


def test_the_bucket_of_the_warehouse_is_the_default(setup: Setup):
    name = new_name()
    code, made = setup("--set", f"catalog.warehouse=s3://{name}/lake")
    assert (code, made["bucket"]) == (0, f"s3://{name}")
    code, refused = setup()
    assert code == 2 and "the warehouse is not an S3 bucket" in refused["message"]


@pytest.mark.parametrize("name", ["UPPER", "a", "/srv/folder", "ftp://x", "with space"])
def test_a_name_that_no_bucket_can_have_is_refused(services: Services, tmp_path: Path, capsys, name: str):
    code, refused = Setup(services.seaweedfs, tmp_path, capsys)(name)
    assert code == 2, refused
    assert refused["message"]


def test_an_option_in_front_of_the_command_is_not_lost_in_silence(capsys):
    assert run_command("setup", "setup", ["--set", "home=/x", "bucket", "a-name"]) == 2
    assert "an option before 'bucket' is not passed to it" in capsys.readouterr().err


def test_a_key_of_kms_is_used_where_one_is_named(services: Services):
    name, s3 = new_name(), s3_of(services.glue)
    arn = "arn:aws:kms:us-east-1:123456789012:key/abc"
    made = prepare_bucket(name, plan_bucket(BucketState(exists=False), arn), s3, NETWORK, kms_key=arn)
    assert (made.encryption, made.kms_key, made.versioning) == ("aws:kms", arn, "Enabled")
    assert plan_bucket(made, arn) == []
    assert plan_bucket(made, arn + "2") == ["enable encryption"]
    assert plan_bucket(made) == []  # a stronger encryption than asked for stays


def test_a_bucket_in_another_region_is_made_there(services: Services):
    name, s3 = new_name(), s3_of(services.glue, region="eu-central-1")
    prepare_bucket(name, plan_bucket(BucketState(exists=False)), s3, NETWORK)
    assert client_of(s3, NETWORK).get_bucket_location(Bucket=name)["LocationConstraint"] == "eu-central-1"


def test_a_server_that_does_not_answer_says_so(services: Services):
    with pytest.raises(UnavailableError):
        inspect_bucket("a-name", s3_of(services.seaweedfs, endpoint="http://127.0.0.1:9"), NETWORK)


def test_the_doctor_names_what_a_bucket_lacks(setup: Setup):
    name, client = new_name(), client_of(s3_of(setup.server), NETWORK)
    flags = {**setup.flags(), "catalog.warehouse": f"s3://{name}/lake"}
    settings = load_settings(environ={}, flags=flags)

    def told() -> Any:
        checks = {check.name: check for check in examine(settings, spark=False)}
        return checks["bucket"]

    assert not (missing := told()).ok and "does not exist" in missing.detail
    client.create_bucket(Bucket=name)
    bare = told()
    assert not bare.ok and "versioning is off" in bare.detail and "encryption is disabled" in bare.detail
    assert bare.hint == f"frazil setup bucket {name}"
    setup(name)
    well = told()
    assert well.ok, well
    assert well.detail == f"s3://{name}: versioning enabled, encryption AES256"
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Suspended"})
    assert not (suspended := told()).ok and "versioning is suspended" in suspended.detail
