"""Signed agent cards in the Python SDKs of 1.0 and of 0.3.

`signed_card.py URL PROGRAM` verifies the card of a server at a URL, and lets a program `a2a` verify a card that the SDK signs.
`signed_card.py --sign CARD KEY` prints a card that the SDK signs: the vectors in tests/it/card/vectors.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from importlib.metadata import version
from pathlib import Path

from a2a.types import AgentCard
from a2a.utils.signing import (
    InvalidSignaturesError,
    create_agent_card_signer,
    create_signature_verifier,
)
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from harness import EVERY_SCRIPT, check_all, run
from jwt import PyJWK

OLD = version('a2a-sdk').startswith('0.')
ALGORITHMS = ['ES256', 'EdDSA', 'RS256']
CARD = {
    'name': f'Signed {EVERY_SCRIPT}',
    'description': '',
    'version': '1.0.0',
    'defaultInputModes': ['text/plain'],
    'defaultOutputModes': [],
    'skills': [{'id': 's', 'name': 'S', 'description': 'd', 'tags': []}],
}
if OLD:
    CARD |= {
        'url': 'https://agent.example/rpc',
        'preferredTransport': 'JSONRPC',
        'protocolVersion': '0.3.0',
        'capabilities': {'streaming': False, 'extensions': [{'uri': 'urn:x', 'params': {'n': 1.5, 'e': '', 'l': [1, '']}}]},
        'securitySchemes': {'key': {'type': 'apiKey', 'in': 'header', 'name': 'x-key'}, 'tls': {'type': 'mutualTLS'}},
        'security': [{'key': []}],
    }
else:
    CARD |= {
        'supportedInterfaces': [{'url': 'https://agent.example/rpc', 'protocolBinding': 'JSONRPC', 'protocolVersion': '1.0'}],
        'capabilities': {'streaming': False, 'extensions': [{'uri': 'urn:x', 'params': {'n': 1.5, 'e': '', 'l': [1, '']}}]},
        'securitySchemes': {'key': {'apiKeySecurityScheme': {'location': 'header', 'name': 'x-key'}}},
        'securityRequirements': [{'schemes': {'key': {}}}],
    }


def read(text):
    """The card of this JSON, in the type of the SDK."""
    if OLD:
        return AgentCard.model_validate_json(text)
    from google.protobuf.json_format import Parse

    return Parse(text, AgentCard(), ignore_unknown_fields=True)


def written(card):
    """The JSON of a card."""
    if OLD:
        return card.model_dump_json(exclude_none=True, by_alias=True)
    from google.protobuf.json_format import MessageToJson

    return MessageToJson(card)


def signed(text, key, algorithm, kid='k'):
    """The JSON of a card that the SDK signs."""
    sign = create_agent_card_signer(key, {'kid': kid, 'alg': algorithm, 'jku': None, 'typ': 'JOSE'})
    return written(sign(read(text)))


def key_of(algorithm):
    """A new private key."""
    if algorithm == 'ES256':
        return ec.generate_private_key(ec.SECP256R1())
    if algorithm == 'EdDSA':
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public_pem(key):
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return key.public_key().public_bytes(*form)


def get(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read().decode()


class Signed:
    def __init__(self, url, program):
        self.url, self.program = url, program

    async def card_of_the_server_is_verified(self):
        keys = {key['kid']: PyJWK(key) for key in json.loads(get(f'{self.url}/.well-known/jwks.json'))['keys']}
        verify = create_signature_verifier(lambda kid, _: keys[kid].key, ALGORITHMS)
        card = get(f'{self.url}/.well-known/agent-card.json')
        verify(read(card))
        changed = json.loads(card)
        changed['description'] = 'changed'
        try:
            verify(read(json.dumps(changed)))
        except InvalidSignaturesError:
            return
        raise AssertionError('a changed card is verified')

    async def card_of_the_sdk_is_verified_by_the_program(self):
        with tempfile.TemporaryDirectory() as directory:
            card, pem = Path(directory, 'card.json'), Path(directory, 'key.pem')
            for algorithm in ALGORITHMS:
                key = key_of(algorithm)
                pem.write_bytes(public_pem(key))
                text = signed(json.dumps(CARD), key, algorithm)
                for content, expected in [(text, 0), (text.replace('1.0.0', '1.0.1'), 1)]:
                    card.write_text(content)
                    done = subprocess.run([self.program, 'card', 'verify', card, '--key', pem], capture_output=True)
                    assert done.returncode == expected, f'{algorithm}: {done}'


async def main():
    await check_all(f'a2a-sdk {version("a2a-sdk")}', Signed(*sys.argv[1:]))


if sys.argv[1] == '--sign':
    pem = serialization.load_pem_private_key(Path(sys.argv[3]).read_bytes(), None)
    algorithm = {ec.EllipticCurvePrivateKey: 'ES256', ed25519.Ed25519PrivateKey: 'EdDSA'}
    name = next((name for kind, name in algorithm.items() if isinstance(pem, kind)), 'RS256')
    text = json.dumps(CARD) if sys.argv[2] == '-' else Path(sys.argv[2]).read_text()
    print(signed(text, pem, name))
else:
    run(main)
