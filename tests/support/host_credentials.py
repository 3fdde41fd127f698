"""Folders of credentials for hosts, made by openssl."""

import subprocess
from pathlib import Path

SECRET = "a-secret-of-many-characters"
REQUEST = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=test")


def run_openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_self_signed(folder: Path, *, name: str = "weft-shard", secret: str = SECRET) -> str:
    """Make a folder whose certificate is its own CA; return its name."""
    folder.mkdir(parents=True, exist_ok=True)
    run_openssl("req", "-x509", *REQUEST, "-keyout", folder / "tls.key", "-out", folder / "tls.crt", "-days", "10",
                "-addext", f"subjectAltName=DNS:{name}")
    (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())
    (folder / "secret").touch(0o600)
    (folder / "secret").write_text(f"{secret}\n")
    return str(folder)


def make_signed(folder: Path, authority: Path, *, secret: str = SECRET) -> str:
    """Make a folder whose certificate another folder's certificate has signed; return its name."""
    folder.mkdir(parents=True)
    (folder / "extensions").write_text("subjectAltName=DNS:weft-shard\n")
    run_openssl("req", *REQUEST, "-keyout", folder / "tls.key", "-out", folder / "request")
    run_openssl("x509", "-req", "-in", folder / "request", "-CA", authority / "tls.crt",
                "-CAkey", authority / "tls.key", "-CAcreateserial",
                "-extfile", folder / "extensions", "-out", folder / "tls.crt", "-days", "10")
    (folder / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
    (folder / "secret").touch(0o600)
    (folder / "secret").write_text(f"{secret}\n")
    return str(folder)
