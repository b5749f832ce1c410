"""The program `a2a` with a scripted model, and the tools of a server on the Python SDK of MCP: python mcp_tools.py A2A."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from harness import check, equal, run

A2A = os.path.abspath(sys.argv[1])
SERVER = [sys.executable, str(Path(__file__).with_name('mcp_server.py'))]


class Model(BaseHTTPRequestHandler):
    """Calls `add` with the numbers of the message, and then answers with the result."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['content-length'])))
        last = body['messages'][-1]
        if last['role'] == 'tool':
            message = {'content': 'Result: ' + last['content']}
        else:
            equal([tool['function']['name'] for tool in body['tools']], ['add'])
            a, b = last['content'].split()
            function = {'name': 'add', 'arguments': json.dumps({'a': int(a), 'b': int(b)})}
            message = {'content': None, 'tool_calls': [{'id': 'c1', 'type': 'function', 'function': function}]}
        answer = json.dumps({'choices': [{'message': message, 'finish_reason': 'stop'}]}).encode()
        self.send_response(200)
        self.send_header('content-type', 'application/json')
        self.send_header('content-length', str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as listener:
        return listener.getsockname()[1]


async def connectable(port):
    while True:
        try:
            (await asyncio.open_connection('127.0.0.1', port))[1].close()
            return
        except OSError:
            await asyncio.sleep(0.1)


async def tools(transport):
    """Serves the model with a server, and sends messages."""
    model = ThreadingHTTPServer(('127.0.0.1', 0), Model)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, 'a2a.toml')
        url = f'http://127.0.0.1:{model.server_port}/v1'
        path.write_text(f'store = "memory"\nlisten = 0\n[openai]\nurl = "{url}"\nmodel = "test"\n'
                        f'[[openai.mcp]]\nname = "math"\n{transport}\n')
        environment = {'PATH': os.environ['PATH'], 'HOME': '/nonexistent'}
        command = [A2A, 'serve', '--config', path, '--log-filter', 'warn']
        server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            line = await asyncio.to_thread(server.stdout.readline)
            url = line.removeprefix('listening on ').strip()

            async def send(text):
                command = [A2A, 'send', url, text, '-o', 'json']
                done = await asyncio.to_thread(
                    subprocess.run, command, env=environment, capture_output=True, text=True, timeout=30)
                task = json.loads(done.stdout)
                task = task.get('task', task)
                return ''.join(part['text'] for part in task['artifacts'][0]['parts'])

            equal(await send('2 3'), 'Result: 5')
            # The SDK does not pass the text of the exception on.
            failed = await send('3 -1')
            assert failed.startswith('Result: Error: '), failed
        finally:
            server.terminate()
            await asyncio.to_thread(server.wait, 20)
            model.shutdown()


async def stdio():
    await tools('command = ' + json.dumps(SERVER))


async def http():
    port = free_port()
    server = subprocess.Popen([*SERVER, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await connectable(port)
        await tools(f'url = "http://127.0.0.1:{port}/mcp"')
    finally:
        server.terminate()
        server.wait(20)


async def main():
    await check('tools of an MCP server on the Python SDK over stdio', stdio, 60)
    await check('tools of an MCP server on the Python SDK over streamable HTTP', http, 60)


run(main)
