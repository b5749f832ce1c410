#!/usr/bin/env python3
"""Metrics by OTLP: at rest, each counter and histogram has the value of /metrics. The names are those of docs/operations.md."""

import re
import time

from common import ROOT, WORK, check, labelled, run, stopping, wait
from metrics import Load
from receiver import Receiver

# The scrape itself changes them.
EXCEPT = {"process_cpu_seconds_total", "a2a_http_responses_total"}


def documented():
    """Returns the names in OpenTelemetry by those in Prometheus."""
    return dict(re.findall(r"^\| `(\w+)` \| `([\w.]+)` \|", (ROOT / "docs/operations.md").read_text(), re.M))


def otlp_name(name, labels):
    if name == "a2a_model_tokens_total":
        detail = labels.pop("detail")
        return f"gen_ai.client.inference.usage.{'' if detail == 'all' else detail + '.'}{labels.pop('direction')}_tokens", labels
    return documented()[name], labels


def equal_values():
    file = WORK / "exports.jsonl"
    file.unlink(missing_ok=True)
    receiver = Receiver(file)
    load = Load(env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "500", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b"})
    with stopping(load, receiver):
        load.round()
        server = load.server
        # At rest, two reads are equal.
        def counters(found):
            return {line for line in found.splitlines() if re.match(r"a2a_\w+_total", line) and "http_responses" not in line}

        def text():
            before, _, after = server.metrics(), time.sleep(1.5), server.metrics()
            changed.clear()
            changed.update(counters(before) ^ counters(after))
            return None if changed else after

        changed = set()
        shown = wait(text, 60)
        if not check("the server comes to rest", shown, "\n".join(sorted(changed))):
            return
        at = time.time_ns()
        newer = lambda: [row for row in receiver.read("metric") if row["start"] and row["time"] > at]
        check("metrics are exported", wait(newer, 20))
        newest = {}
        for row in newer():
            newest[row["name"], frozenset(row["attributes"].items())] = row
        wrong, compared = [], 0
        for (name, labels), value in labelled(shown):
            base = re.sub(r"_(sum|count|bucket)$", "", name) if name not in documented() else name
            if base in EXCEPT or "le" in labels or not re.search(r"_(total|sum|count)$", name):
                continue
            otlp, labels = otlp_name(base, dict(labels))
            row = newest.get((otlp, frozenset(labels.items())))
            found = row and (row["count"] if name.endswith("_count") else row["sum"] if name.endswith("_sum") else row["value"])
            compared += 1
            if row is None or abs(found - value) > 1e-6 * max(1, abs(value)):
                wrong.append(f"{name} {labels}: {value} in /metrics, {found} in {otlp}")
        check(f"{compared} values are equal", not wrong and compared > 50, "\n".join(wrong))
        sums = [row for row in newer() if row["type"] != "gauge"]
        check("sums are cumulative", {row["temporality"] for row in sums} == {2} and all(row["start"] < row["time"] for row in sums))
        buckets = [row for row in sums if row["type"] == "histogram"]
        check("buckets add up", buckets and all(sum(row["counts"]) == row["count"] and len(row["counts"]) == len(row["bounds"]) + 1 for row in buckets))
        resource = sums[0]["resource"]
        check("the resource names the server", resource.get("service.name") == "a2a" and resource.get("service.version"), resource)
        requests = [row for row in receiver.read("request") if row["path"] == "/v1/metrics"]
        check("headers of the variable are sent", all(row["headers"].get("x-key") == "a b" for row in requests), requests[:1])
        spans = {row["resource"]["service.instance.id"] for row in receiver.read("span")}
        check("spans and metrics have one resource", spans == {resource.get("service.instance.id")}, spans)


if __name__ == "__main__":
    run(equal_values)
