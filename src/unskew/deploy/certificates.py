"""Keys and certificates of a deployment: an authority of its own, the server's certificate, a key pair a site."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 365


def make_all(server: Path, sites: Sequence[Path], host: str) -> None:
    """Writes ca.crt, server.crt and server.key, and for each site its key pair and ca.crt; private keys are the owner's
    alone. The authority's own key is not kept: nobody can make another certificate of it."""
    authority = ec.generate_private_key(ec.SECP256R1())
    name = _name("unskew deployment")
    ca = _sign(name, name, authority.public_key(), authority, authority=True)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _sign(_name(host), name, key.public_key(), authority, hosts=(host, "localhost", "127.0.0.1"))
    text = ca.public_bytes(serialization.Encoding.PEM)
    (server / "ca.crt").write_bytes(text)
    (server / "server.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_private(server / "server.key", key)
    for site in sites:
        (site / "ca.crt").write_bytes(text)
        own = ec.generate_private_key(ec.SECP384R1())
        _write_private(site / "key", own, serialization.PrivateFormat.OpenSSH)  # Flower reads no other
        public = own.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (site / "key.pub").write_bytes(public + b"\n")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _sign(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, by: ec.EllipticCurvePrivateKey,
    authority: bool = False, hosts: Sequence[str] = (),
) -> x509.Certificate:  # fmt: skip
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
        .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(
            digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        ), critical=True)
    )  # fmt: skip
    if hosts:
        names = [_host(host) for host in dict.fromkeys(hosts)]
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return made.sign(by, hashes.SHA256())


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: Any = serialization.PrivateFormat.PKCS8) -> None:
    data = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(data)
