"""S3 storage through boto3, an optional dependency: pip install 'weft[s3]'.

Errors of boto3 become `Refused` or `Unreachable`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from launcher.adapters.errors import Refused, called
from launcher.adapters.sources.s3 import Entry, Storage
from launcher.hub.client import PIECE, TIMEOUT, Unreachable

NEEDS = "the source `s3` needs pip install 'weft[s3]'"
ENDPOINT, R2_ACCOUNT = "S3_ENDPOINT_URL", "R2_ACCOUNT_ID"
MISSING = {"NoSuchKey", "NoSuchBucket", "NoSuchVersion", "404"}
CHANGED = {"PreconditionFailed", "412"}
FORBIDDEN = {401, 403}
NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound")


def connect(environment: Mapping[str, str]) -> Storage:
    """Return a client of AWS, or of the endpoint that R2_ACCOUNT_ID or S3_ENDPOINT_URL names. Raises Refused.

    boto3 itself reads the credentials from the variables of AWS.
    """
    try:
        boto3, config, errors = (import_module(name) for name in ("boto3", "botocore.config", "botocore.exceptions"))
    except ModuleNotFoundError:
        raise Refused("invalid", NEEDS) from None
    settings = config.Config(connect_timeout=TIMEOUT, read_timeout=TIMEOUT, max_pool_connections=32,
                             retries={"mode": "standard", "total_max_attempts": 1})
    account = environment.get(R2_ACCOUNT)
    address = f"https://{account}.r2.cloudflarestorage.com" if account else environment.get(ENDPOINT) or None
    try:
        return Buckets(boto3.client("s3", endpoint_url=address, config=settings), errors)
    except (ValueError, errors.BotoCoreError) as error:
        raise Refused("invalid", f"the source `s3` cannot be set up: {type(error).__name__}") from None


class Buckets:
    def __init__(self, client: Any, errors: Any) -> None:
        """Wrap boto3's `client`; `errors` is the module botocore.exceptions."""
        self._client, self._errors = client, errors

    def list(self, bucket: str, prefix: str) -> Mapping[str, Entry]:
        """Return the entries by key: at most the first 1,000, since only one page is read."""
        with self._understood(bucket, prefix):
            answer = self._client.list_objects_v2(Bucket=bucket, Prefix=prefix)
            return {found["Key"]: Entry(found["Size"], found["ETag"]) for found in answer.get("Contents", ())}

    def read(self, bucket: str, key: str, etag: str, start: int) -> Iterator[bytes]:
        only = {"Range": f"bytes={start}-"} if start else {}
        with self._understood(bucket, key):
            answer = self._client.get_object(Bucket=bucket, Key=key, IfMatch=etag, **only)
            yield from answer["Body"].iter_chunks(PIECE)

    @contextmanager
    def _understood(self, bucket: str, key: str) -> Iterator[None]:
        """Convert boto3's errors, without their messages: these may reveal more than the client should see."""
        what = called(f"s3://{bucket}/{key}")
        try:
            yield
        except self._errors.ClientError as error:
            raise refusal(error.response, what) from None
        except self._errors.BotoCoreError as error:
            kind = type(error).__name__
            if kind in NO_CREDENTIALS:
                raise Refused("forbidden", f"the server has no credentials for {what} ({kind})") from None
            if isinstance(error, self._errors.ParamValidationError):
                raise Refused("invalid", f"{what} is no name of a bucket and a key") from None
            raise Unreachable(f"cannot reach {what}: {kind}") from None


def refusal(response: Mapping[str, Any], what: str) -> Exception:
    """Return the exception for an error response of S3."""
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in MISSING:
        return Refused("missing", f"there is no {what}")
    if code in CHANGED:
        return Refused("unreachable", f"{what} changed while it was read; try again")
    if status in FORBIDDEN:
        return Refused("forbidden", f"the server may not read {what} ({code:.50})")
    return Unreachable(f"the storage of {what} answers {status} {code:.50}", heard=True)
