// What the JavaScript agents share: the commands of their messages, which tests/interop/python/agent_texts.py lists.
import { setTimeout } from 'node:timers/promises';

/** Tasks that have been canceled. */
export const canceled = new Set();

/**
 * Handles a message. `task` has an `id` and the functions reply, open, status and chunk.
 */
export async function respond(text, isFollowUp, task) {
  const [, command, rest] = isFollowUp ? [null, '', text] : text.match(/^(\S*) ?([^]*)$/);
  if (command === '/message') return task.reply(rest);
  task.open();
  if (command === '/ask') return task.status('input-required', rest);
  if (command === '/fail') return task.status('failed', rest);
  task.status('working');
  if (command === '/slow') {
    for (const end = Date.now() + 20_000; Date.now() < end && !canceled.has(task.id);) await setTimeout(10);
    if (canceled.has(task.id)) return task.status('canceled');
  }
  const count = command === '/stream' ? Number(rest) : 1;
  for (let n = 1; n <= count; n++) {
    task.chunk(command === '/stream' ? `chunk ${n} of ${count}\n` : text, n > 1, n === count);
    await setTimeout(20);
  }
  return task.status('completed');
}

/** Listens on a free loopback port, and returns its number. */
export const listen = (app) => new Promise((resolve) => {
  const server = app.listen(0, '127.0.0.1', () => resolve(server.address().port));
});

/** Prints the URL, and ends the program when its input is closed. */
export function serving(url) {
  console.log(`listening on ${url}`);
  process.stdin.resume().on('end', () => process.exit(0));
}
