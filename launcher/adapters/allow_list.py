"""Allow-list of the adapters that requests may name, from `--allowed-adapters`. Adapters set by flags need no entry.

Every source gives an adapter a location, `SOURCE://PATH`. An entry is a source, which allows all that it has, or the
beginning of a location, up to a slash or its end.
"""

import re
from collections.abc import Mapping, Sequence

from launcher.adapters.errors import AdapterError, quote_name

ALWAYS_BOUNDED_SOURCES = ("hub", "local")  # by the token of the request, or by --adapter-root
S3_SCHEME = "s3://"
BUCKET_VARIABLE, FOLDER_VARIABLE = "PREDIBASE_MODEL_BUCKET", "PREDIBASE_MODEL_FOLDER"
ENTRY_PATTERN = re.compile(r"(hub|local|s3)|(hub|s3)://[\w.-]+(/(?!\.{1,2}(/|$))[^/\s@]+)*")


class AdapterAllowList:
    """Entries of the allow-list; without any, the default: the Hub, the local root, and the variables' bucket."""

    def __init__(self, entries: Sequence[str], environment: Mapping[str, str]) -> None:
        """Read the entries. Raises ValueError for an invalid one."""
        for entry in entries:
            if not ENTRY_PATTERN.fullmatch(entry):
                raise ValueError("--allowed-adapters takes hub, local, s3, or the beginning of a name such as "
                                 f"hub://org or s3://bucket/folder, got {quote_name(entry)}")
        self._entries = tuple(entries) or make_default_entries(environment)

    def allows(self, location: str) -> bool:
        source = location.partition("://")[0]
        return any(entry == source or f"{location}/".startswith(f"{entry}/") for entry in self._entries)

    def check(self, location: str) -> None:
        """Raise AdapterError unless an entry allows the location."""
        if not self.allows(location):
            raise AdapterError("forbidden", f"requests may only name adapters of {', '.join(self._entries)} "
                               f"(--allowed-adapters), got {quote_name(location)}")


def make_default_entries(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the default, which opens no bucket but the one that the operator named: the server's own rights count
    there, whoever asks. Raises ValueError for invalid variables."""
    bucket, folder = (environment.get(name, "").strip("/") for name in (BUCKET_VARIABLE, FOLDER_VARIABLE))
    if not bucket:
        return ALWAYS_BOUNDED_SOURCES
    entry = S3_SCHEME + "/".join(filter(None, (bucket, folder)))
    if not ENTRY_PATTERN.fullmatch(entry):
        raise ValueError(f"{BUCKET_VARIABLE} and {FOLDER_VARIABLE} must be names of a bucket and of a folder in it, "
                         f"got {quote_name(entry)}")
    return (*ALWAYS_BOUNDED_SOURCES, entry)
