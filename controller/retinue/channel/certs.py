"""Certificates of one run: an authority that lives as long as the run, and three roles below it.

The only importer of `cryptography`, and only the controller imports it: agents, keepers
and operators read PEM text. Never writes a file and never checks a peer; that is
`context.py` (the chain) and `server.py` (the role).
"""

import datetime
import re
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from retinue.channel.context import build_identity, build_server_name
from retinue.errors import PermanentError
from retinue.terms.record import Record

Role = Literal["controller", "agent", "operator"]

# Clocks of nodes may be years off: no node's clock is before 1970 or ten years ahead.
NOT_BEFORE = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LIFETIME = datetime.timedelta(days=3653)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")


class Authority(Record, frozen=True):
    """The run's own certificate authority; the key stays 0600 in the batch host's node directory."""

    run_id: str
    ca_pem: str
    ca_key_pem: str


def build_authority(run_id: str) -> Authority:
    """Make a new authority for this run.

    Shape: EC P-256, self-signed, may sign leaves only.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = _build_name(f"retinue run {run_id}")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _start_certificate(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_build_key_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(run_id, _to_pem(certificate), _to_key_pem(key))


def build_certificate(authority: Authority, role: Role, name: str) -> tuple[str, str]:
    """Sign a new key for one peer; returns (certificate, key), both PEM.

    Shape:  the role and the name are a URI in the subject alternative name (a common name ends at
            64 characters, a node's name need not); the controller also has the run's fixed dNSName. An agent's
            may answer too: its node's gateway shows it to the gateways of other nodes.
    Errors: PermanentError when the name is not a host name.
    """
    if not _NAME.fullmatch(name):
        raise PermanentError(f"cannot build certificate: name {name!r} is not a host name")
    ca = x509.load_pem_x509_certificate(authority.ca_pem.encode())
    ca_key = serialization.load_pem_private_key(authority.ca_key_pem.encode(), None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise PermanentError("cannot build certificate: the key of the run's authority is not an EC key")
    key = ec.generate_private_key(ec.SECP256R1())
    is_controller = role == "controller"
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(build_identity(authority.run_id, role, name))]
    if is_controller:
        names.append(x509.DNSName(build_server_name(authority.run_id)))
    usages = [ExtendedKeyUsageOID.SERVER_AUTH] if role != "operator" else []
    usages += [ExtendedKeyUsageOID.CLIENT_AUTH] if not is_controller else []
    certificate = (
        _start_certificate(ca.subject, _build_name(f"retinue {role}"), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_build_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return _to_pem(certificate), _to_key_pem(key)


def _start_certificate(
    issuer: x509.Name, subject: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOT_BEFORE)
        .not_valid_after(datetime.datetime.now(datetime.UTC).replace(microsecond=0) + LIFETIME)
    )


def _build_key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _build_name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _to_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _to_key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
