#!/usr/bin/env python3
"""Receiver of OTLP over HTTP with protobuf: receiver.py PORT FILE [OPTION...].

Writes a line of JSON for each span, data point of a metric and log record, and one for each request with its path, size and headers.
It uses the protobuf classes of the package `opentelemetry-proto`, and nothing of this project. Port 0 picks one; the first line of
output is the port. As a module, `Receiver(file)` runs it in a thread.
"""

import argparse
import gzip
import http.server
import json
import socketserver
import threading
import time

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

PATHS = {
    "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse),
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
    "/v1/logs": (ExportLogsServiceRequest, ExportLogsServiceResponse),
}


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(item) for item in any_value.array_value.values]
    if kind == "kvlist_value":
        return attributes(any_value.kvlist_value.values)
    found = getattr(any_value, kind) if kind else None
    return found.hex() if isinstance(found, bytes) else found


def attributes(pairs):
    return {pair.key: value(pair.value) for pair in pairs}


def spans(request):
    for of_resource in request.resource_spans:
        resource = attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield {
                    "record": "span", "name": span.name, "kind": Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    "trace_id": span.trace_id.hex(), "span_id": span.span_id.hex(), "parent_id": span.parent_span_id.hex(),
                    "flags": span.flags, "trace_state": span.trace_state,
                    "start": span.start_time_unix_nano, "end": span.end_time_unix_nano,
                    "status": Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"), "message": span.status.message,
                    "attributes": attributes(span.attributes),
                    "events": [{"name": event.name, "time": event.time_unix_nano, "attributes": attributes(event.attributes)} for event in span.events],
                    "links": [{"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex(), "attributes": attributes(link.attributes)} for link in span.links],
                    "scope": of_scope.scope.name, "schema": of_scope.schema_url or of_resource.schema_url, "resource": resource,
                }


def points(request):
    for of_resource in request.resource_metrics:
        resource = attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                for point in data.data_points:
                    made = {
                        "record": "metric", "name": metric.name, "unit": metric.unit, "type": kind, "attributes": attributes(point.attributes),
                        "start": point.start_time_unix_nano, "time": point.time_unix_nano, "scope": of_scope.scope.name, "resource": resource,
                    }
                    if kind != "gauge":
                        made["temporality"] = data.aggregation_temporality
                    if kind == "histogram":
                        made |= {"count": point.count, "sum": point.sum, "bounds": list(point.explicit_bounds), "counts": list(point.bucket_counts)}
                    else:
                        made["value"] = getattr(point, point.WhichOneof("value"))
                    if kind == "sum":
                        made["monotonic"] = data.is_monotonic
                    yield made


def logs(request):
    for of_resource in request.resource_logs:
        for of_scope in of_resource.scope_logs:
            for record in of_scope.log_records:
                yield {"record": "log", "body": value(record.body), "severity": record.severity_text, "attributes": attributes(record.attributes),
                       "trace_id": record.trace_id.hex(), "span_id": record.span_id.hex(), "resource": attributes(of_resource.resource.attributes)}


READ = {"/v1/traces": spans, "/v1/metrics": points, "/v1/logs": logs}


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        """A sender that goes away before its response is no error."""


class Receiver:
    """A receiver that runs in a thread. `behave` may be changed at any time: status, retry_after (s), delay (s), truncate."""

    def __init__(self, path, port=0, **behave):
        self.path, self.lock, self.requests, self.behave = path, threading.Lock(), 0, behave
        open(path, "a").close()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                receiver.receive(self)

            def log_message(self, *_):
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def receive(self, handler):
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        headers = {name.lower(): text for name, text in handler.headers.items()}
        behave = dict(self.behave)
        time.sleep(behave.get("delay", 0))
        status = behave.get("status", 200)
        rows, reply = [], b""
        if handler.path not in PATHS:
            status = 404
        elif status == 200:
            of_request, of_response = PATHS[handler.path]
            try:
                plain = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
                rows, reply = list(READ[handler.path](of_request.FromString(plain))), of_response().SerializeToString()
            except (DecodeError, OSError, EOFError) as error:
                status, rows = 400, [{"record": "error", "error": str(error)}]
        with self.lock, open(self.path, "a") as out:
            self.requests += 1
            rows.insert(0, {"record": "request", "path": handler.path, "bytes": len(body), "status": status, "headers": headers})
            out.writelines(json.dumps(row) + "\n" for row in rows)
        handler.send_response(status)
        if "retry_after" in behave:
            handler.send_header("retry-after", str(behave["retry_after"]))
        handler.send_header("content-type", "application/x-protobuf")
        handler.send_header("content-length", str(len(reply) + (100 if behave.get("truncate") else 0)))
        handler.end_headers()
        handler.wfile.write(reply)
        if behave.get("truncate"):
            handler.close_connection = True

    def read(self, record=None):
        """Returns what was received so far."""
        with self.lock, open(self.path) as lines:
            rows = [json.loads(line) for line in lines]
        return [row for row in rows if record in (None, row["record"])]

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("file")
    parser.add_argument("--status", type=int, default=200, help="status of each response")
    parser.add_argument("--retry-after", type=int, dest="retry_after", help="Retry-After of each response, in seconds")
    parser.add_argument("--delay", type=float, default=0, help="time before each response, in seconds")
    parser.add_argument("--truncate", action="store_true", help="end each response early")
    options = {name: given for name, given in vars(parser.parse_args()).items() if given}
    receiver = Receiver(options.pop("file"), options.pop("port", 0), **options)
    print(receiver.port, flush=True)
    threading.Event().wait()
