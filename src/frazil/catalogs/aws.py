"""AWS keys from where AWS's own tools find them."""

from __future__ import annotations

from pydantic import SecretStr

from frazil.errors import CredentialsError
from frazil.settings import S3Settings


def with_keys(s3: S3Settings) -> S3Settings:
    """Resolves the keys of a profile, or of AWS's credential chain (role, environment), into the settings.

    For PyArrow and DuckDB, which know no profiles. Temporary keys are those of this moment.
    """
    if s3.access_key is not None:
        return s3
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        found = boto3.Session(profile_name=s3.profile).get_credentials()
    except BotoCoreError as error:
        raise CredentialsError(
            f"the AWS profile '{s3.profile}' provides no credentials",
            hint="check s3.profile: frazil config show s3",
        ) from error
    if found is None:
        return s3
    frozen = found.get_frozen_credentials()
    keys = {
        "access_key": frozen.access_key,
        "secret_key": SecretStr(frozen.secret_key),
        "session_token": SecretStr(frozen.token) if frozen.token else None,
    }
    return s3.model_copy(update={**keys, "profile": None})
