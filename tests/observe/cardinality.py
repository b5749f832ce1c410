#!/usr/bin/env python3
"""Number of series while callers choose names: two rounds of 10,000 tasks, methods, tenants and paths of 4,999 owners."""

import concurrent.futures
import hashlib
import http.client
import json

from common import WORK, Server, check, run

NAMES = 10_000
OWNERS = 4_999  # A file has at most 10,000 tokens.
BATCH = 50


def many_names():
    directory = WORK / "cardinality"
    directory.mkdir(exist_ok=True)
    tokens = [f"secret-{n}" for n in range(2 * OWNERS)]
    entry = lambda n, name: {"name": f"t{n}", "owner": f"owner-{n}", "created": "2026-01-01T00:00:00Z", "source": "bearer", "sha256": hashlib.sha256(name.encode()).hexdigest()}
    document = {"tokens": [entry(n, name) for n, name in enumerate(tokens)]}
    document["tokens"].append(entry(len(tokens), "admin"))
    (directory / "tokens.json").write_text(json.dumps(document))
    server = Server("", "--auth-tokens", "tokens.json", "--store", "memory", "--log-filter", "error", directory=directory)
    address = server.url.removeprefix("http://")

    def calls(start):
        """Calls of some owners over one connection: a batch with a send, an unknown method and a task, and two paths."""
        connection = http.client.HTTPConnection(address, timeout=60)
        for n in range(start, start + BATCH):
            name = f"name-{n}"
            headers = {"authorization": f"Bearer {tokens[n // NAMES * OWNERS + n % OWNERS]}", "content-type": "application/json", "user-agent": name}
            sent = {"message": {"messageId": name, "role": "ROLE_USER", "contextId": name, "parts": [{"text": name}]}}
            methods = [("SendMessage", sent), (name, {}), ("GetTask", {"id": name}), ("CancelTask", {"id": name, "tenant": name})]
            batch = [{"jsonrpc": "2.0", "id": at, "method": method, "params": params} for at, (method, params) in enumerate(methods)]
            for method, path, body in (("POST", "/rpc", json.dumps(batch)), ("GET", f"/{name}", None), ("GET", f"/{name}/tasks", None)):
                connection.request(method, path, body, headers)
                connection.getresponse().read()

    def scrape():
        # A sweep runs each minute.
        return {name for name in server.series({"authorization": "Bearer admin"}) if not name.startswith("a2a_sweep_")}

    with server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(calls, range(0, NAMES, BATCH)))
        first = scrape()
        list(pool.map(calls, range(NAMES, 2 * NAMES, BATCH)))
        second = scrape()
    check(f"{len(second)} series are at most 2,000", len(second) <= 2000)
    check("other names add no series", first == second, sorted(first ^ second))
    sends = [name for name in second if name.startswith("a2a_calls_total{operation=\"SendMessage\"")]
    check("the calls were made", sends, sends)


if __name__ == "__main__":
    run(many_names)
