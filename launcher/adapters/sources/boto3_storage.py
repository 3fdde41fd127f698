"""S3 storage through boto3, an optional dependency: pip install 'weft[s3]'.

Errors of boto3 become `AdapterError` or `ServerUnreachableError`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from launcher.adapters.errors import AdapterError, quote_name
from launcher.adapters.sources.s3 import BucketEntry, ObjectStorageClient
from launcher.hub.client import CHUNK_BYTES, TIMEOUT_SECONDS, ServerUnreachableError

BOTO3_MISSING_ERROR = "the source `s3` needs pip install 'weft[s3]'"
ENDPOINT_VARIABLE, R2_ACCOUNT_VARIABLE = "S3_ENDPOINT_URL", "R2_ACCOUNT_ID"
NOT_FOUND_CODES = {"NoSuchKey", "NoSuchBucket", "NoSuchVersion", "404"}
PRECONDITION_FAILED_CODES = {"PreconditionFailed", "412"}
FORBIDDEN_STATUSES = {401, 403}
CREDENTIALS_ERROR_NAMES = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError",
                           "ProfileNotFound")


def connect_to_s3(environment: Mapping[str, str]) -> ObjectStorageClient:
    """Return a client of AWS, or of the endpoint that R2_ACCOUNT_ID or S3_ENDPOINT_URL names. Raises AdapterError.

    boto3 itself reads the credentials from the variables of AWS.
    """
    try:
        boto3, config, errors = (import_module(name) for name in ("boto3", "botocore.config", "botocore.exceptions"))
    except ModuleNotFoundError:
        raise AdapterError("invalid", BOTO3_MISSING_ERROR) from None
    settings = config.Config(connect_timeout=TIMEOUT_SECONDS, read_timeout=TIMEOUT_SECONDS, max_pool_connections=32,
                             retries={"mode": "standard", "total_max_attempts": 1})
    account = environment.get(R2_ACCOUNT_VARIABLE)
    endpoint_url = f"https://{account}.r2.cloudflarestorage.com" if account else environment.get(
        ENDPOINT_VARIABLE) or None
    try:
        return Boto3Storage(boto3.client("s3", endpoint_url=endpoint_url, config=settings), errors)
    except (ValueError, errors.BotoCoreError) as error:
        raise AdapterError("invalid", f"the source `s3` cannot be set up: {type(error).__name__}") from None


class Boto3Storage:
    """ObjectStorageClient through boto3's S3 client."""

    def __init__(self, client: Any, errors: Any) -> None:
        """Wrap boto3's `client`; `errors` is the module botocore.exceptions."""
        self._client, self._errors = client, errors

    def list_entries(self, bucket: str, prefix: str) -> Mapping[str, BucketEntry]:
        """Return the entries by key: at most the first 1,000, since only one page is read."""
        with self._convert_boto3_errors(bucket, prefix):
            answer = self._client.list_objects_v2(Bucket=bucket, Prefix=prefix)
            return {item["Key"]: BucketEntry(item["Size"], item["ETag"]) for item in answer.get("Contents", ())}

    def read_object(self, bucket: str, key: str, etag: str, start_offset: int) -> Iterator[bytes]:
        range_argument = {"Range": f"bytes={start_offset}-"} if start_offset else {}
        with self._convert_boto3_errors(bucket, key):
            answer = self._client.get_object(Bucket=bucket, Key=key, IfMatch=etag, **range_argument)
            yield from answer["Body"].iter_chunks(CHUNK_BYTES)

    @contextmanager
    def _convert_boto3_errors(self, bucket: str, key: str) -> Iterator[None]:
        """Convert boto3's errors, without their messages: these may reveal more than the client should see."""
        quoted_url = quote_name(f"s3://{bucket}/{key}")
        try:
            yield
        except self._errors.ClientError as error:
            raise make_response_error(error.response, quoted_url) from None
        except self._errors.BotoCoreError as error:
            kind = type(error).__name__
            if kind in CREDENTIALS_ERROR_NAMES:
                raise AdapterError("forbidden", f"the server has no credentials for {quoted_url} ({kind})") from None
            if isinstance(error, self._errors.ParamValidationError):
                raise AdapterError("invalid", f"{quoted_url} is no name of a bucket and a key") from None
            raise ServerUnreachableError(f"cannot reach {quoted_url}: {kind}") from None


def make_response_error(response: Mapping[str, Any], quoted_url: str) -> Exception:
    """Return the exception for an error response of S3."""
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in NOT_FOUND_CODES:
        return AdapterError("missing", f"there is no {quoted_url}")
    if code in PRECONDITION_FAILED_CODES:
        return AdapterError("unreachable", f"{quoted_url} changed while it was read; try again")
    if status in FORBIDDEN_STATUSES:
        return AdapterError("forbidden", f"the server may not read {quoted_url} ({code:.50})")
    return ServerUnreachableError(f"the storage of {quoted_url} answers {status} {code:.50}", has_response=True)
