"""Credentials of the hosts that serve one model together: a certificate and a secret, from files in one folder.

Every connection between hosts has TLS with a certificate on both sides, and carries the secret. All certificates are
for TLS_NAME, whatever the addresses of the hosts are.
"""

import hmac
import ipaddress
import ssl
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

TLS_NAME = "weft-shard"  # the name that every certificate must be for
CERTIFICATE_FILE, KEY_FILE, CA_FILE, SECRET_FILE = "tls.crt", "tls.key", "ca.crt", "secret"
MIN_SECRET_LENGTH = 16
UNIX_SCHEME = "unix:"
CREDENTIALS_FLAG = "--shard-credentials"


@dataclass(frozen=True, slots=True)
class ShardTlsCredentials:
    """Contents of the files of a folder of credentials."""

    folder: str
    certificate: bytes
    ca: bytes
    key: bytes = field(repr=False)
    secret: str = field(repr=False)

    def accepts(self, secret: object) -> bool:
        """Return whether this is the secret, in a time that does not depend on where they differ."""
        return isinstance(secret, str) and hmac.compare_digest(secret.encode(errors="surrogatepass"),
                                                               self.secret.encode())

    def reload(self) -> "ShardTlsCredentials":
        """Return what the files hold now, for connections from now on, or these if the files do not work."""
        try:
            return load_credentials(self.folder)
        except ValueError:
            return self

    def make_server_context(self) -> ssl.SSLContext:
        """Return the TLS settings of a server, from the files as they are now. It refuses clients without a
        certificate of the same CA."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return self._load_into(context)

    def make_client_context(self) -> ssl.SSLContext:
        """Return the TLS settings of a client, to be used with TLS_NAME as the server's name."""
        return self._load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _load_into(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(Path(self.folder) / CA_FILE)
        context.load_cert_chain(Path(self.folder) / CERTIFICATE_FILE, Path(self.folder) / KEY_FILE)
        return context


def load_credentials(folder: str) -> ShardTlsCredentials:
    """Load and check the files of a folder. Raises ValueError that names the file and what is wrong with it."""
    certificate, key, ca, secret = (
        read_file(Path(folder) / name) for name in (CERTIFICATE_FILE, KEY_FILE, CA_FILE, SECRET_FILE))
    credentials = ShardTlsCredentials(folder, certificate, ca, key, decode_secret(Path(folder) / SECRET_FILE, secret))
    try:
        try_handshake(credentials.make_client_context(), credentials.make_server_context())
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"{folder} ({CREDENTIALS_FLAG}) does not work: {CERTIFICATE_FILE} must be a certificate for {TLS_NAME}, "
            f"{KEY_FILE} its key without a password, {CA_FILE} that of its issuer: {error}") from None
    return credentials


def try_handshake(client_context: ssl.SSLContext, server_context: ssl.SSLContext) -> None:
    """Let a client and a server in this process accept each other's certificate. Raises ssl.SSLError if either does
    not."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client_context.wrap_bio(to_client, to_server, server_hostname=TLS_NAME),
            server_context.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(2):  # hello and certificate of each end; the second turn has both verified
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()


def read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path} ({CREDENTIALS_FLAG}): {error.strerror}") from None


def decode_secret(path: Path, content: bytes) -> str:
    """Return the secret without the line's end. Raises ValueError for one that is too short or cannot be sent."""
    secret = content.decode(errors="replace").strip()
    if len(secret) < MIN_SECRET_LENGTH:
        raise ValueError(f"{path} must hold at least {MIN_SECRET_LENGTH} characters, it has {len(secret)}")
    if not all("!" <= character <= "~" for character in secret):
        raise ValueError(f"{path} must hold ASCII letters, digits and signs only, no blanks")
    return secret


def list_exposed_files(folder: str) -> list[str]:
    """Return the files of a folder that hold a secret and that any user of this host may read or write."""
    return [name for name in (KEY_FILE, SECRET_FILE) if (Path(folder) / name).stat().st_mode & stat.S_IRWXO]


def is_local_address(address: str) -> bool:
    """Return whether only processes of this machine can reach an address of gRPC: a unix socket, or loopback by
    number."""
    if address.startswith(UNIX_SCHEME):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name may mean any address
        return False


def format_address(host: str, port: int) -> str:
    """Return an address as gRPC reads it, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
