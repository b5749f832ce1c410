// What the JavaScript programs share: a line for each result, which scripts/interop counts, and the words of tests.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

const { dependencies } = JSON.parse(readFileSync(new URL('package.json', import.meta.url)));
const late = (ms) => new Promise((_, reject) => setTimeout(reject, ms, new Error(`not done after ${ms} ms`)).unref());
let failures = 0;

/** What the SDK under test is called. */
export const SDK = `@a2a-js/sdk ${dependencies['@a2a-js/sdk']}`;

/** What the library that verifies signatures of push notifications is called. */
export const WEBHOOKS = `standardwebhooks ${dependencies.standardwebhooks}`;

/** Text that is more than ASCII, with what JSON and server-sent events must escape. */
export const EVERY_SCRIPT = 'naïve Ω 漢字 \u{1f980} "\\\n\t\u2028 end';

/** Runs each of these tests, which has failed if it throws or takes too long. */
export async function check(name, tests, ...args) {
  for (const [test, run] of Object.entries(tests)) {
    try {
      await Promise.race([run(...args), late(20_000)]);
      console.log(`ok ${name} ${test}`);
    } catch (error) {
      failures += 1;
      console.log(`FAILED ${name} ${test}\n${error.stack}`.replaceAll('\n', '\n    '));
    }
  }
}

/** Ends the program, which has failed if one of its tests has. */
export function end() {
  process.exit(failures > 0 ? 1 : 0);
}

/** What is thrown, which must be the error of this name. An error in an event is the cause of another. */
export async function refused(name, promise) {
  const error = await promise.then((got) => assert.fail(`${JSON.stringify(got)} and no ${name}`), (it) => it);
  const typed = error.cause?.name === name ? error.cause : error;
  assert.equal(typed.name, name, error);
  assert.ok(typed.message.length > 0);
  return typed;
}

export async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

/** What `/stream` says in so many chunks. */
export const chunks = (count) => Array.from({ length: count }, (_, n) => `chunk ${n + 1} of ${count}\n`);
