// Signed agent cards in the JavaScript SDK.
//
// `signed_card.mjs URL PROGRAM` verifies the card of a server at a URL, and lets a program `a2a` verify a card that the SDK
// signs. `signed_card.mjs --sign KEY` prints a card that the SDK signs: a vector in tests/it/card/vectors.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createPrivateKey, generateKeyPairSync } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { generateAgentCardSignature, verifyAgentCardSignature } from '@a2a-js/sdk';
import { importJWK } from 'jose';
import { check, end, EVERY_SCRIPT, SDK } from './harness.mjs';

const [url, program] = process.argv.slice(2);
const CARD = {
  name: `Signed ${EVERY_SCRIPT}`,
  description: '',
  version: '1.0.0',
  supportedInterfaces: [{ url: 'https://agent.example/rpc', protocolBinding: 'JSONRPC', protocolVersion: '1.0' }],
  capabilities: { streaming: false, extensions: [{ uri: 'urn:x', params: { n: 1.5, e: '', l: [1, ''], z: null } }] },
  securitySchemes: { key: { apiKeySecurityScheme: { location: 'header', name: 'x-key' } } },
  securityRequirements: [{ schemes: { key: {} } }],
  defaultInputModes: ['text/plain'],
  defaultOutputModes: [],
  skills: [{ id: 's', name: 'S', description: 'd', tags: [] }],
};
const CURVES = { ES256: ['ec', { namedCurve: 'P-256' }], EdDSA: ['ed25519'], RS256: ['rsa', { modulusLength: 2048 }] };

/**
 * The JSON of the card with a signature of the SDK. It is not decoded with `AgentCard.fromJSON` before: SDK 1.3.0 leaves the
 * security schemes of a decoded card out of what it signs and verifies.
 */
async function signed(key, alg) {
  return JSON.stringify(await generateAgentCardSignature(key, { alg, kid: 'k', typ: 'JOSE' })(CARD));
}

if (url === '--sign') {
  const key = createPrivateKey(readFileSync(program));
  const alg = { ec: 'ES256', ed25519: 'EdDSA', rsa: 'RS256' }[key.asymmetricKeyType];
  console.log(await signed(key, alg));
} else {
  console.debug = () => {};
  await check(SDK, {
    async 'card of the server is verified'() {
      const { keys } = await (await fetch(`${url}/.well-known/jwks.json`)).json();
      const verify = verifyAgentCardSignature((kid) => importJWK(keys.find((key) => key.kid === kid)));
      const card = await (await fetch(`${url}/.well-known/agent-card.json`)).json();
      await verify(card);
      await assert.rejects(verify({ ...card, description: 'changed' }));
    },
    async 'card of the SDK is verified by the program'() {
      const directory = mkdtempSync(join(tmpdir(), 'a2a-'));
      try {
        const [card, pem] = [join(directory, 'card.json'), join(directory, 'key.pem')];
        for (const [alg, kind] of Object.entries(CURVES)) {
          const { privateKey, publicKey } = generateKeyPairSync(...kind);
          writeFileSync(pem, publicKey.export({ type: 'spki', format: 'pem' }));
          const text = await signed(privateKey, alg);
          for (const [content, status] of [[text, 0], [text.replace('1.0.0', '1.0.1'), 1]]) {
            writeFileSync(card, content);
            const done = spawnSync(program, ['card', 'verify', card, '--key', pem], { encoding: 'utf8' });
            assert.equal(done.status, status, `${alg}: ${done.stderr}`);
          }
        }
      } finally {
        rmSync(directory, { recursive: true });
      }
    },
  });
  end();
}
