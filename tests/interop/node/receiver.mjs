// A receiver of push notifications on loopback, for the programs that check them.
import { once } from 'node:events';
import { createServer } from 'node:http';
import { text } from 'node:stream/consumers';
import { setTimeout } from 'node:timers/promises';

/** The state that a notification has, in the form of its version. */
const state = (body) => (body.task ?? body.statusUpdate ?? body).status?.state;

/** Passes the URL of a receiver to a function that starts a task, and returns the notifications of the task. */
export async function notifications(start) {
  const received = [];
  const server = createServer(async (request, response) => {
    const data = await text(request);
    received.push({ headers: request.headers, data, body: JSON.parse(data) });
    response.writeHead(204).end();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  try {
    await start(`http://127.0.0.1:${server.address().port}/hook`);
    while (!received.some((it) => ['TASK_STATE_COMPLETED', 'completed'].includes(state(it.body)))) await setTimeout(20);
    return received;
  } finally {
    server.close();
    server.closeAllConnections();
  }
}
