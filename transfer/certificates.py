"""Makes a certificate authority and certificates that it signs: for tests, laptops and small clusters.

`transfer certificates` makes them from the shell. If you have a public key infrastructure, for example
cert-manager, use that. Needs `cryptography` (`pip install "tensor-transfer[certificates]"`).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from transfer.transports.arguments import sequence, text, wrong
from transfer.transports.errors import comes_with

with comes_with("certificates", __name__):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


_DAY = datetime.timedelta(days=1)
#: days from now at most: a certificate has years of four digits
_LONGEST = 36500


@dataclass(frozen=True, slots=True)
class Issued:
    """Paths of a certificate and its key, as PEM."""

    certificate: str
    key: str


class Authority:
    """Signs certificates, and writes them into `folder`, which has to exist.

    path: the authority's certificate. days: validity of that certificate. Its key is next to it (NAME.key),
    for `Authority.opened`.
    """

    def __init__(self, folder: Path, name: str = "authority", *, days: float = 3650) -> None:
        self.folder = folder = _folder(folder)
        text(name, "name")
        _days(days, "days", 1 / 24)
        self.path = str(folder / f"{name}.pem")
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = _builder(self._name, self._name, self._key, self._key, -1, days)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        made = made.add_extension(usage, critical=True)
        _replace(folder / f"{name}.key", _pem_of(self._key), secret=True)
        _replace(Path(self.path), made.sign(self._key, hashes.SHA256()).public_bytes(_PEM), secret=False)

    @classmethod
    def opened(cls, folder: Path, name: str = "authority") -> Authority:
        """Opens an existing authority. Raises OSError, and ValueError for invalid files."""
        found = cls.__new__(cls)
        found.folder = folder = _folder(folder)
        text(name, "name")
        found.path = str(folder / f"{name}.pem")
        key = serialization.load_pem_private_key((folder / f"{name}.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{name}.key is not the key of an authority that was made here")
        found._key = key
        found._name = x509.load_pem_x509_certificate(Path(found.path).read_bytes()).subject
        return found

    def issue(
        self,
        name: str = "peer",
        *,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        begins: float = -1,
        ends: float = 825,
        self_signed: bool = False,
    ) -> Issued:
        """Makes a certificate for hosts (names, also *.name, and IP addresses), for servers and clients.

        begins, ends: days from now. self_signed: without the authority, for tests of its refusal.
        """
        text(name, "name")
        _days(begins, "begins", -_LONGEST)
        _days(ends, "ends", begins)
        hosts = tuple(text(host, "a host") for host in sequence(hosts, "hosts", "hosts"))
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer, signing = (subject, key) if self_signed else (self._name, self._key)
        made = _builder(subject, issuer, key, signing, begins, ends)
        if hosts:
            names = x509.SubjectAlternativeName([_general(host) for host in hosts])
            made = made.add_extension(names, critical=False)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = made.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        signed = made.sign(signing, hashes.SHA256())
        issued = Issued(str(self.folder / f"{name}.crt"), str(self.folder / f"{name}.key"))
        _replace(Path(issued.key), _pem_of(key), secret=True)
        _replace(Path(issued.certificate), signed.public_bytes(_PEM), secret=False)
        return issued


_PEM = serialization.Encoding.PEM


def _folder(given: Path) -> Path:
    try:
        return Path(given)
    except TypeError:
        raise wrong("folder", given, "the path of a folder") from None


def _days(given: float, name: str, least: float) -> None:
    if not (isinstance(given, int | float) and least <= given <= _LONGEST):
        raise wrong(name, given, f"a number of days from {least:g} to {_LONGEST}")


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signing: ec.EllipticCurvePrivateKey,
    begins: float,
    ends: float,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number())
    # RFC 5280, 4.2.1.1 and 2, asks for both. `ssl.create_default_context` refuses others since Python 3.13.
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = made.add_extension(own, critical=False)
    issuers = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    made = made.add_extension(issuers, critical=False)
    return made.not_valid_before(now + begins * _DAY).not_valid_after(now + ends * _DAY)


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _replace(path: Path, content: bytes, *, secret: bool) -> None:
    """Replaces a file atomically: a reader sees the old file or the new one."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.rename(path)
