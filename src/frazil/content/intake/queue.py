"""A client of an SQS queue that translates its errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from frazil.errors import (
    ConfigError,
    CredentialsError,
    FrazilError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UsageError,
    first_line,
)
from frazil.settings.model import NetworkSettings, S3Settings

#: Maximum messages that SQS returns or deletes at once.
MOST = 10
#: Maximum seconds that SQS waits for messages.
LONGEST_WAIT_S = 20

_QUEUE_URL = re.compile(r"(?P<origin>https?://(?P<server>[^/?#@\s]+))/[^\s?#]+")
_AWS_HOST = re.compile(r"(?:sqs(?:-fips)?\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com(?:\.cn)?")
_WRONG_KEYS = {
    "InvalidClientTokenId",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
    "IncompleteSignature",
    "MissingAuthenticationToken",
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "InvalidSecurity",
}
_BUSY = {"Throttling", "ThrottlingException", "RequestThrottled", "TooManyRequestsException", "OverLimit"}


@dataclass(frozen=True)
class Received:
    """A message of the queue: its body, and the receipt handle that deletes it."""

    body: bytes
    handle: str


class Queue:
    """One SQS queue. Methods translate errors, and do not retry.

    Args:
        client: boto3's; safe for threads.
        url: of the queue.
    """

    def __init__(self, client: Any, url: str) -> None:
        self._client, self.url = client, url

    def visibility_s(self) -> float:
        """Returns the visibility timeout. Call it first, so that errors show early.

        Raises:
            NotFoundError: there is no such queue.
        """
        with self._asking():
            found = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=["VisibilityTimeout"])
        return float(found.get("Attributes", {}).get("VisibilityTimeout", 30))

    def receive(self, wait_s: int) -> list[Received]:
        """Returns up to 10 messages; none after a timeout."""
        with self._asking():
            found = self._client.receive_message(QueueUrl=self.url, MaxNumberOfMessages=MOST, WaitTimeSeconds=wait_s)
        return [Received(m["Body"].encode(), m["ReceiptHandle"]) for m in found.get("Messages", ())]

    def delete(self, messages: Sequence[Received]) -> list[Received]:
        """Deletes messages, and returns those that the queue did not delete."""
        entries = [{"Id": str(n), "ReceiptHandle": m.handle} for n, m in enumerate(messages)]
        with self._asking():
            found = self._client.delete_message_batch(QueueUrl=self.url, Entries=entries)
        return [messages[int(failed["Id"])] for failed in found.get("Failed", ())]

    def give_back(self, messages: Sequence[Received]) -> None:
        """Makes messages visible to other receivers at once."""
        entries = [{"Id": str(n), "ReceiptHandle": m.handle, "VisibilityTimeout": 0} for n, m in enumerate(messages)]
        with self._asking():
            self._client.change_message_visibility_batch(QueueUrl=self.url, Entries=entries)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (ClientError, BotoCoreError) as error:
            raise _from_boto(error, self.url) from error


def open_queue(
    url: str, s3: S3Settings, network: NetworkSettings, *, endpoint_url: str | None = None, receivers: int = 1
) -> Queue:
    """Opens a queue with the credentials of section `s3`, or of AWS's chain. Sends no request.

    Args:
        url: of the queue; its region is taken from it where it is one of AWS.
        s3: whose keys, profile and region are used. Its endpoint is that of S3, not of SQS.
        network: patience with the server.
        endpoint_url: of the server; by default that of the queue's URL, where it is not AWS's, else
            `AWS_ENDPOINT_URL_SQS`, else AWS.
        receivers: how many threads will use it.

    Raises:
        UsageError: the URL is none.
        CredentialsError: the profile is not there.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    found = _QUEUE_URL.fullmatch(url)
    if found is None:
        raise UsageError(
            f"{url} is no URL of a queue", hint="https://sqs.REGION.amazonaws.com/ACCOUNT/NAME: aws sqs get-queue-url"
        )
    aws = _AWS_HOST.fullmatch(found["server"])
    if endpoint_url is None and not aws:
        endpoint_url = found["origin"]
    config = Config(
        connect_timeout=network.connect_timeout,
        read_timeout=max(network.read_timeout, LONGEST_WAIT_S + 10),
        retries={"total_max_attempts": 1},
        max_pool_connections=receivers + 2,
    )
    try:
        session = boto3.Session(
            region_name=(aws[1] or aws[2]) if aws else s3.region,
            profile_name=s3.profile if s3.access_key is None else None,
            aws_access_key_id=s3.access_key,
            aws_secret_access_key=s3.secret_key.get_secret_value() if s3.secret_key else None,
            aws_session_token=s3.session_token.get_secret_value() if s3.session_token else None,
        )
        return Queue(session.client("sqs", endpoint_url=endpoint_url, config=config), url)
    except ValueError as error:
        raise UsageError(
            f"{endpoint_url} is no URL of a server", cause=first_line(error), hint="http://host:port"
        ) from error
    except BotoCoreError as error:
        raise CredentialsError(
            f"found no way to {url}", cause=first_line(error), hint="look at s3.profile: frazil config show s3"
        ) from error


def _from_boto(error: Exception, url: str) -> FrazilError:
    answer: dict[str, Any] = getattr(error, "response", {})
    if not answer:
        return _without_answer(error, url)
    told = answer.get("Error", {})
    code = str(told.get("Code", "")).removeprefix("AWS.SimpleQueueService.").rpartition("#")[2]
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    cause = f"{code}: {told.get('Message', '')}".strip(": ")
    if code in ("NonExistentQueue", "QueueDoesNotExist", "QueueDeletedRecently"):
        return NotFoundError(
            f"there is no queue {url}", cause=cause, hint="check the URL and the region: aws sqs list-queues"
        )
    if code in _WRONG_KEYS or status == 401:
        return CredentialsError(
            f"the keys were not accepted for {url}",
            cause=cause,
            hint="check s3.access_key and s3.secret_key, or s3.profile",
        )
    if code in _BUSY or status == 429 or status >= 500:
        return UnavailableError(f"SQS is busy or failing: {url}", cause=cause, hint="repeat a little later")
    if status == 403 or "AccessDenied" in code:
        return NotAllowedError(
            f"not allowed: {url}",
            cause=cause,
            hint="allow sqs:ReceiveMessage, sqs:DeleteMessage and sqs:GetQueueAttributes, and kms:Decrypt if encrypted",
        )
    return UsageError(f"SQS rejects the request: {url}", cause=cause, hint="check the URL of the queue")


def _without_answer(error: Exception, url: str) -> FrazilError:
    name = type(error).__name__
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"):
        return CredentialsError(
            f"found no keys for {url}",
            cause=first_line(error),
            hint="set s3.access_key and s3.secret_key, or s3.profile, or log in with the AWS tools",
        )
    if name == "NoRegionError":
        return ConfigError(f"the region of {url} is not known", cause=first_line(error), hint="set s3.region")
    return UnavailableError(
        f"no answer from SQS: {url}",
        cause=first_line(error),
        hint="check --endpoint-url, that it is up, and the network",
    )
