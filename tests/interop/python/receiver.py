"""A receiver of push notifications on loopback, for the programs that check them."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Notification:
    def __init__(self, headers, data):
        self.headers, self.data, self.body = headers, data, json.loads(data)


class Receiver:
    """Accepts every notification while its `with` block runs."""

    def __init__(self):
        received = self.received = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                data = self.rfile.read(int(self.headers['content-length']))
                headers = {name.lower(): value for name, value in self.headers.items()}
                received.append(Notification(headers, data))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.origin = f'http://127.0.0.1:{self._server.server_port}'
        self.url = f'{self.origin}/hook'

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    async def until_completed(self):
        """Waits for the notification of the end of a task, and returns all notifications."""
        while not any(state(it.body) in ('TASK_STATE_COMPLETED', 'completed') for it in self.received):
            await asyncio.sleep(0.02)
        return list(self.received)


def state(body):
    """The state that a notification has, in the form of its version."""
    body = next((body[name] for name in ('task', 'statusUpdate') if name in body), body)
    return body.get('status', {}).get('state')
