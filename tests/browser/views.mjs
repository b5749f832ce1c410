// Every view of the console in light, dark and narrow pages, for axe-core and for pictures: node views.mjs PROGRAM CHROMIUM DIRECTORY [FILTER]

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';

import { Server, sleep, until } from './harness.mjs';
import { end, here, operatorToken, program, receiver, test, work } from './session.mjs';

/** Views for pictures and for axe-core: their address, and what is done there before. */
async function views(server) {
  const made = {};
  for (const text of ['hello', '/stream 20 5', '/ask Which city?', '/approve write_file', '/form', '/auth', '/fail no such city', '/parts', '/panic', '/reject not for me', '/slow 3600']) {
    made[text.split(' ')[0]] = await server.send(text);
  }
  await until('the tasks have their states', async () => (await server.task(made['/parts'].id)).status.state === 'TASK_STATE_COMPLETED');
  for (const name of ['delivered', 'refused', 'failing']) {
    const configuration = { taskPushNotificationConfig: { url: `${receiver.url}/${name}`, token: 'secret' } };
    made[name] = (await server.json('message:send', { body: { message: { messageId: crypto.randomUUID(), role: 'ROLE_USER', parts: [{ text: `a receiver: ${name}` }] }, configuration } })).task;
  }
  made.twice = await server.send('/ask City?');
  await until('the question is asked', async () => (await server.task(made.twice.id)).status.state === 'TASK_STATE_INPUT_REQUIRED');
  await server.send('Lisbon', { taskId: made.twice.id });
  const chat = (name) => `#/chat/${made[name].contextId}`;
  return {
    'chat-new': '#/chat', 'chat-echo': chat('hello'), 'chat-question': chat('/ask'), 'chat-approval': chat('/approve'), 'chat-form': chat('/form'), 'chat-auth': chat('/auth'),
    'chat-failed': chat('/panic'), 'chat-parts': chat('/parts'), 'chat-working': chat('/slow'), tasks: '#/tasks', 'tasks-failed': '#/tasks?state=failed',
    'task-timeline': `#/task/${made['/stream'].id}`, 'task-question': `#/task/${made['/ask'].id}`, 'task-failed': `#/task/${made['/panic'].id}`, 'task-result': `#/task/${made['/parts'].id}/result`,
    'task-wire': `#/task/${made['/parts'].id}/wire`, 'task-push': `#/task/${made.delivered.id}/push`, card: '#/card', 'card-raw': '#/card?raw=1.0', settings: '#/settings', status: '#/status', push: '#/push',
    'tasks-all': '#/tasks?all=1', 'task-operator': `#/task/${made.twice.id}?of=default`, 'task-operator-wire': `#/task/${made.twice.id}/wire?of=default`, 'task-operator-failed': `#/task/${made['/panic'].id}?of=default`, 'task-delivery': `#/task/${made.refused.id}/push?of=default`,
    'composer-options': ['#/chat', (page) => page.getByRole('button', { name: 'Options' }).click()],
    'dialog-keys': ['#/chat', (page) => page.getByRole('button', { name: 'Keys' }).click()],
    'dialog-login': ['#/tasks', async (page, proxy) => {
      proxy.respond = ({ url }) => (/tasks\?/.test(url) ? [401, { 'www-authenticate': 'Bearer' }] : null);
      await page.getByRole('button', { name: 'Sign in' }).click();
      proxy.respond = () => null;
    }],
    'menu-copy': [`#/task/${made['/stream'].id}`, (page) => page.getByText('Copy the call').click()],
    'menu-states': ['#/tasks', (page) => page.locator('summary', { hasText: 'States' }).click()],
    'card-probe': ['#/card', async (page) => {
      await page.getByRole('button', { name: 'Probe' }).first().waitFor();
      await page.getByText('Loading…').waitFor({ state: 'detached' });
      const buttons = await page.getByRole('button', { name: 'Probe' }).all();
      assert.equal(buttons.length, 6);
      // A result moves the buttons below it.
      for (const [index, button] of buttons.entries()) {
        await button.click();
        await until('the interface answers', async () => (await page.getByText(/✓ answers in/).count()) === index + 1);
      }
    }],
  };
}

const shown = await new Server(program, { store: `sqlite:${work}/shown.db`, args: ['--push-enabled', '--push-allow', receiver.url] }).start();
const hashes = await views(shown);
const NARROW = { width: 320, height: 700 };
const FORMS = {
  light: { colorScheme: 'light' },
  dark: { colorScheme: 'dark' },
  narrow: { colorScheme: 'light', viewport: NARROW },
  'narrow dark': { colorScheme: 'dark', viewport: NARROW },
  // A zoom of 200 % halves the viewport.
  zoomed: { colorScheme: 'dark', viewport: { width: 640, height: 450 }, deviceScaleFactor: 2 },
};
const axe = readFileSync(path.join(here, 'node_modules/axe-core/axe.min.js'), 'utf8');

/** Returns what scrolls sideways, is cut at an edge, or moves in a page. */
function layoutProblems() {
  const name = (element) => `${element.tagName.toLowerCase()}.${element.className} ${element.getAttribute('aria-label') ?? ''}`;
  return [...document.querySelectorAll('*')].flatMap((element) => {
    const { overflowX, animationName, transitionDuration, scrollBehavior } = getComputedStyle(element);
    const canScroll = element === document.documentElement || ['auto', 'scroll'].includes(overflowX);
    const overflow = element.scrollWidth - element.clientWidth;
    const { left, right } = element.getBoundingClientRect();
    return [
      ...(element.matches('[open] > .popup') && (left < 0 || right > innerWidth) ? [`${name(element)} is cut`] : []),
      ...(canScroll && overflow > 0 ? [`${name(element)} scrolls ${overflow} px sideways`] : []),
      ...(animationName !== 'none' || transitionDuration !== '0s' || scrollBehavior !== 'auto' ? [`${name(element)} moves`] : []),
    ];
  });
}

await Promise.all(Object.entries(FORMS).map(([form, options]) => {
  // The path of the page changes no pixel. axe-core inserts HTML, which the policy of the page forbids. The probe of 0.3 reads an
  // extended card, which the demo agent has not.
  return test(`views are accessible: ${form}`, shown, { prefixes: [''], expects: /policy|\/v1\/card|status of 401/, bypassCSP: true, reducedMotion: 'reduce', ...options }, async (session) => {
    const { page } = session;
    const violations = [];
    let isOpened = true;
    const all = [['status-counts', '#/status'], ['push-refused', '#/push'], ...Object.entries(hashes)];
    for (const [name, view] of all) {
      const [hash, act] = [view].flat();
      if (name === 'chat-new') await page.goto(`${session.proxy.page}#operator=${operatorToken('shown')}`);
      // What was opened in a view before must not stay.
      if (isOpened) await session.goto(hash);
      else await page.evaluate((hash) => { location.hash = hash; }, hash);
      isOpened = Boolean(act);
      await act?.(page, session.proxy);
      await sleep(400);
      if (form !== 'zoomed') await session.screenshot(`console-${name}-${form.replace(' ', '-')}`);
      violations.push(...(await page.evaluate(layoutProblems)).map((problem) => `${name}: ${problem}`));
      if (await page.evaluate(() => !window.axe)) await page.evaluate(axe);
      const found = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
      for (const { id, impact, nodes } of found.violations) {
        if (['serious', 'critical'].includes(impact)) violations.push(`${name}: ${id}: ${nodes.slice(0, 3).map(({ html, any }) => `${html.slice(0, 160)} ${any[0]?.message ?? ''}`).join(' | ')}`);
      }
    }
    assert.ok(await page.evaluate(() => matchMedia('(prefers-reduced-motion: reduce)').matches));
    assert.deepEqual(violations, []);
    return `${all.length} views`;
  });
}));

await end();
