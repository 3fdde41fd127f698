"""Interface of an adapter source, and the version that a source currently has under a name."""

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from launcher.adapters.store_protocol import FetchRequest


@dataclass(frozen=True, slots=True)
class FetchableAdapter:
    """Current version of a named adapter at its source, and the function that copies its files into a folder."""

    num_bytes_to_fetch: int  # bytes still to be fetched
    download_files: Callable[[Path], None]  # fetch both files into a folder; raises AdapterError, ValueError or OSError
    version_stamp: Hashable = None  # equal stamps mean equal contents; None if nothing guarantees that
    required_token: str = ""  # the token that was needed to read it; empty if it is public
    is_private: bool = False


class AdapterSource(Protocol):
    """Interface of an adapter source: the Hub, local folders or S3."""

    is_remote: bool  # whether asking the source is slow, so that its last answer may be reused

    def make_uri(self, name: str) -> str:
        """Return the location of the adapter as the allow-list knows it. Raises AdapterError for an invalid name."""

    def list_tokens_to_try(self, request: FetchRequest) -> tuple[str, ...]:
        """Return the tokens that the source tries, in this order."""

    def open_adapter(self, request: FetchRequest) -> AbstractContextManager[FetchableAdapter]:
        """Return what the source has under the name. Raises AdapterError, `unreachable` if it is not known."""

    def find_local_copy(self, request: FetchRequest) -> FetchableAdapter | None:
        """Return a copy on this machine, for use when the source is unreachable, or None."""
