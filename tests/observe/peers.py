"""What agents need, as small programs on loopback ports: a model, an endpoint, an MCP server and a receiver of webhooks.

Each server keeps the headers and bodies that it received in `received`, can be stopped, and started again at the same port. As a
program, `peers.py mcp` is an MCP server over stdio.
"""

import http.server
import json
import socketserver
import sys
import threading
import time


class HttpServer:
    """A server whose subclass answers with `respond(path, headers, body) -> (status, headers, body)`. `broken`: a status for all."""

    def __init__(self, port=0):
        self.port, self.received, self.broken, self.delay = port, [], None, 0
        self.start()

    def start(self):
        peer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): text for name, text in self.headers.items()}
                peer.received.append((self.path, headers, body))
                time.sleep(peer.delay)
                status, reply_headers, reply = (peer.broken, {}, b"") if peer.broken else peer.respond(self.path, headers, body)
                self.send_response(status)
                for name, text in {**reply_headers, "content-length": str(len(reply))}.items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(reply)

            def do_GET(self):
                peer.received.append((self.path, {name.lower(): text for name, text in self.headers.items()}, b""))
                self.send_response(peer.broken or 405)
                self.send_header("content-length", "0")
                self.end_headers()

            do_HEAD = do_OPTIONS = do_DELETE = do_GET

            def log_message(self, *_):
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class Endpoint(HttpServer):
    """An endpoint of an agent, which answers with a text."""

    def respond(self, path, headers, body):
        return 200, {"content-type": "text/plain"}, b"an answer"


class Webhook(HttpServer):
    def respond(self, path, headers, body):
        return 200, {}, b""


class Model(HttpServer):
    """A model: calls the first tool of the request, if there is one, and then answers with a text."""

    def respond(self, path, headers, body):
        request = json.loads(body)
        last = request["messages"][-1]["role"]
        tools = request.get("tools") or []
        delta, reason = {"role": "assistant", "content": "an answer of the model"}, "stop"
        if tools and last == "user":
            call = {"index": 0, "id": "call-1", "type": "function", "function": {"name": tools[0]["function"]["name"], "arguments": "{}"}}
            delta, reason = {"role": "assistant", "tool_calls": [call]}, "tool_calls"
        usage = {
            "prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18,
            "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2},
        }
        base = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "test-model"}
        chunks = [
            {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {**base, "choices": [], "usage": usage},
        ]
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        return 200, {"content-type": "text/event-stream"}, events.encode()


def mcp_result(request):
    """Result of a request to the MCP server."""
    if request["method"] == "initialize":
        version = request["params"]["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "tools", "version": "1"}}
    if request["method"] == "tools/list":
        return {"tools": [{"name": "greet", "description": "Greets.", "inputSchema": {"type": "object"}}]}
    if request["method"] == "tools/call":
        return {"content": [{"type": "text", "text": "hello"}], "isError": False}
    return {}


class Mcp(HttpServer):
    """An MCP server over HTTP."""

    def respond(self, path, headers, body):
        request = json.loads(body)
        if "id" not in request:
            return 202, {}, b""
        reply = {"jsonrpc": "2.0", "id": request["id"], "result": mcp_result(request)}
        return 200, {"content-type": "application/json"}, json.dumps(reply).encode()


if __name__ == "__main__" and sys.argv[1:] == ["mcp"]:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": mcp_result(asked)}), flush=True)
