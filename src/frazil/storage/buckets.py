"""Buckets of S3 as a warehouse needs them: with versions, so that nothing is lost, and encrypted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from frazil.errors import ConflictError, FrazilError, NotAllowedError, NotFoundError, UnsupportedError
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage.s3_client import client_of, from_boto, translated

Step = Literal["create", "enable versioning", "enable encryption"]
SSE_S3, SSE_KMS = "AES256", "aws:kms"
_NO_ENCRYPTION = "ServerSideEncryptionConfigurationNotFoundError"
#: A bucket of this region is created without naming it.
_FIRST_REGION = "us-east-1"


@dataclass(frozen=True)
class BucketState:
    """What a bucket is like.

    Attributes:
        versioning: Enabled, Suspended, or Off; None: the server does not say.
        encryption: AES256 or aws:kms by default for new objects, or Off; None: the server does not say.
        kms_key: the key of aws:kms; None is AWS's own.
    """

    exists: bool
    versioning: str | None = "Off"
    encryption: str | None = "Off"
    kms_key: str | None = None


def inspect_bucket(name: str, s3: S3Settings, network: NetworkSettings) -> BucketState:
    """Asks for versioning and encryption of a bucket.

    Raises:
        NotAllowedError: the bucket belongs to somebody else, or its settings may not be read.
    """
    client = client_of(s3, network)
    try:
        with translated(name):
            client.head_bucket(Bucket=name)
    except NotFoundError:
        return BucketState(exists=False)
    except NotAllowedError as error:
        error.hint = "choose another name if the bucket is not yours; else check the policies: s3:ListBucket"
        raise
    versioning = _asked(name, lambda: client.get_bucket_versioning(Bucket=name).get("Status", "Off"))
    rule = _asked(name, lambda: _encryption(client, name))
    if rule is None:
        return BucketState(exists=True, versioning=versioning, encryption=None)
    return BucketState(True, versioning, rule.get("SSEAlgorithm", "Off"), rule.get("KMSMasterKeyID"))


def plan_bucket(state: BucketState, kms_key: str | None = None) -> list[Step]:
    """Returns what a bucket lacks, in the order in which it is done. Pure.

    Args:
        state: as it is.
        kms_key: the key that new objects shall be encrypted with; None: any encryption is right.
    """
    steps: list[Step] = []
    if not state.exists:
        steps.append("create")
    if state.versioning != "Enabled":
        steps.append("enable versioning")
    is_encrypted = state.encryption not in (None, "Off")
    if not is_encrypted or (kms_key is not None and (state.encryption, state.kms_key) != (SSE_KMS, kms_key)):
        steps.append("enable encryption")
    return steps


def prepare_bucket(
    name: str, steps: list[Step], s3: S3Settings, network: NetworkSettings, *, kms_key: str | None = None
) -> BucketState:
    """Does the steps of a plan, and returns what the bucket is like afterwards.

    Raises:
        ConflictError: the name is taken by somebody else.
        UnsupportedError: the server cannot do one of them.
    """
    client = client_of(s3, network)
    rule = {"SSEAlgorithm": SSE_KMS, "KMSMasterKeyID": kms_key} if kms_key else {"SSEAlgorithm": SSE_S3}
    encryption = {"Rules": [{"ApplyServerSideEncryptionByDefault": rule, "BucketKeyEnabled": bool(kms_key)}]}
    actions: dict[Step, Callable[[], Any]] = {
        "create": lambda: _create(client, name, s3.region),
        "enable versioning": lambda: client.put_bucket_versioning(
            Bucket=name, VersioningConfiguration={"Status": "Enabled"}
        ),
        "enable encryption": lambda: client.put_bucket_encryption(
            Bucket=name, ServerSideEncryptionConfiguration=encryption
        ),
    }
    for step in steps:
        try:
            with translated(name):
                actions[step]()
        except FrazilError as error:
            raise error.adding(f"the step was: {step}") from error.__cause__
    return inspect_bucket(name, s3, network)


def _create(client: Any, name: str, region: str) -> None:
    where = {} if region == _FIRST_REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    try:
        client.create_bucket(Bucket=name, **where)
    except client.exceptions.BucketAlreadyOwnedByYou:
        return  # created meanwhile
    except client.exceptions.BucketAlreadyExists as error:
        raise ConflictError(
            f"the bucket s3://{name} belongs to another account",
            cause="bucket names are unique across all accounts",
            hint="choose another name",
        ) from error


def _encryption(client: Any, name: str) -> dict[str, Any]:
    from botocore.exceptions import ClientError

    try:
        found = client.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == _NO_ENCRYPTION:
            return {}
        raise
    rules = [rule.get("ApplyServerSideEncryptionByDefault", {}) for rule in found.get("Rules", [])]
    return next((rule for rule in rules if rule), {})


def _asked(name: str, ask: Callable[[], Any]) -> Any:
    """Returns the server's answer; None if it does not implement the request."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return ask()
    except (ClientError, BotoCoreError) as error:
        told = from_boto(error, name)
        if isinstance(told, UnsupportedError):
            return None
        raise told from error
