#!/usr/bin/env python3
"""A collector that is down: what it costs the calls, in pairs of runs with and without an endpoint, and what the server says about it.

Times are printed, and not checked. Spans that can't be delivered are counted, and the log has few warnings.
"""

import http.client
import json
import socket
import time
import urllib.parse

from common import Server, check, message, run, stopping, wait

SENDS, PAIRS = 1000, 5


def unused_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def p99(server):
    """Returns the 99th percentile of the times of sends over one connection, in milliseconds."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc)
    body, times = json.dumps(message("hello", "m-1")), []
    for _ in range(SENDS):
        start = time.perf_counter()
        connection.request("POST", "/message:send", body, {"content-type": "application/json"})
        connection.getresponse().read()
        times.append(time.perf_counter() - start)
    connection.close()
    return sorted(times)[SENDS * 99 // 100] * 1000


def down():
    endpoint = f"http://127.0.0.1:{unused_port()}"
    off, on = Server("", "--log-filter", "warn"), Server("", "--log-filter", "warn", "--otlp-endpoint", endpoint)
    with stopping(off, on):
        # The first requests of a process are slower.
        p99(off), p99(on)
        pairs = [(p99(off), p99(on)) for _ in range(PAIRS)]
        lost = lambda: sum(on.value("a2a_otlp_spans_total", result=result) or 0 for result in ("dropped", "failed"))
        check("lost spans are counted", wait(lost, 30), on.metrics())
    warnings = on.log.read_text().count("level=WARN")
    check("there are one or two warnings", 1 <= warnings <= 2, on.log.read_text())
    for without, with_it in pairs:
        print(f"p99 of {SENDS} sends: {without:.2f} ms without an endpoint, {with_it:.2f} ms with a collector that is down")
    ratios = sorted(with_it / without for without, with_it in pairs)
    print(f"median of {PAIRS} pairs: {(ratios[PAIRS // 2] - 1) * 100:+.1f} %")


if __name__ == "__main__":
    run(down)
