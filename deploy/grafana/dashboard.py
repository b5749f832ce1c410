#!/usr/bin/env python3
"""Writes a2a.json, the Grafana dashboard of a server: deploy/grafana/dashboard.py [--check].

With --check, fails unless the file is as it would be written. Change the panels here, and run `scripts/observe rules` afterwards:
it checks each query. `cargo test metrics` checks the names and labels of metrics.
"""

import json
import pathlib
import sys

FILE = pathlib.Path(__file__).with_name("a2a.json")

SERVER = 'instance=~"$instance"'
AGENT = SERVER + ',agent=~"$agent"'
WINDOW = "[$__rate_interval]"


def rate(metric, by, labels=AGENT):
    return f"sum by ({by}) (rate({metric}{{{labels}}}{WINDOW}))"


def quantile(q, metric, by="", labels=AGENT):
    return f"histogram_quantile({q}, {rate(metric + '_bucket', by + 'le', labels)})"


def gauge(metric, by="", labels=AGENT):
    return f"sum by ({by}) ({metric}{{{labels}}})" if by else f"sum({metric}{{{labels}}})"


def percent(part, whole):
    # Without turns, there is no point instead of a division by zero.
    return f"100 * {part} / ({whole} > 0)"


FAILED = 'a2a_turns_ended_total{outcome="failed",' + AGENT + "}"
ENDED = "a2a_turns_ended_total{" + AGENT + "}"

# Title, type, unit, queries with their legends, and further options.
ROWS = {
    "Overview": [
        ("Ready", "stat", "bool_yes_no", [(f"min(a2a_ready{{{SERVER}}})", "")]),
        ("Build", "table", "none", [(f"a2a_build_info{{{SERVER}}}", "")]),
        ("Calls per second by code", "timeseries", "reqps", [(rate("a2a_calls_total", "code"), "{{code}}")]),
        ("Duration of calls", "timeseries", "s", [(quantile(q, "a2a_call_duration_seconds"), f"p{int(q * 100)}") for q in (0.5, 0.95, 0.99)]),
        ("Failed turns", "timeseries", "percent", [(percent(f"(sum(rate({FAILED}{WINDOW})) or vector(0))", f"sum(rate({ENDED}{WINDOW}))"), "failed")]),
        ("Dependencies down", "stat", "none", [(f"count(a2a_dependency_up{{{AGENT}}} == 0) or vector(0)", "")]),
    ],
    "Turns": [
        ("Running and queued turns", "timeseries", "none", [
            (gauge("a2a_turns"), "running"), (gauge("a2a_queued_turns"), "queued"),
            (gauge("a2a_limit_max", "", AGENT + ',limit="turns"'), "limit"),
        ]),
        ("Turns per second", "timeseries", "ops", [(rate("a2a_turns_started_total", "kind"), "started: {{kind}}"), (rate("a2a_turns_ended_total", "outcome"), "ended: {{outcome}}")]),
        ("Failed turns by reason", "timeseries", "ops", [(f"sum by (agent, reason) (rate({FAILED}{WINDOW}))", "{{agent}} {{reason}}")]),
        ("Duration of turns", "heatmap", "s", [(f"sum by (le) (increase(a2a_turn_duration_seconds_bucket{{{AGENT}}}{WINDOW}))", "{{le}}")]),
        ("Waiting time, 95th percentile", "timeseries", "s", [(quantile(0.95, "a2a_turn_wait_seconds", "queue, "), "{{queue}}")]),
    ],
    "Streams": [
        ("Open streams", "timeseries", "none", [(gauge("a2a_streams", "binding"), "{{binding}}")]),
        ("Events per second", "timeseries", "ops", [(rate("a2a_stream_events_total", "binding"), "{{binding}}")]),
        ("Time to the first event, 95th percentile", "timeseries", "s", [(quantile(0.95, "a2a_stream_first_event_seconds", "operation, "), "{{operation}}")]),
        ("Events not yet sent, 99th percentile", "timeseries", "none", [(quantile(0.99, "a2a_stream_lag_events", "", SERVER), "events")]),
        ("Ends of streams per second", "timeseries", "ops", [(rate("a2a_stream_duration_seconds_count", "end"), "{{end}}")]),
    ],
    "Dependencies": [
        ("State", "state-timeline", "none", [(f"min by (agent, peer) (a2a_dependency_up{{{AGENT}}})", "{{agent}} {{peer}}")]),
        ("Duration of calls, 95th percentile", "timeseries", "s", [(quantile(0.95, "a2a_outbound_duration_seconds", "agent, peer, "), "{{agent}} {{peer}}")]),
        ("Calls per second by result", "timeseries", "reqps", [
            (rate("a2a_outbound_total", "agent, peer, result"), "{{agent}} {{peer}} {{result}}"),
            (rate("a2a_outbound_retries_total", "agent, peer"), "{{agent}} {{peer}} retries"),
        ]),
        ("Tokens per second", "timeseries", "none", [(rate("a2a_model_tokens_total", "agent, direction", AGENT + ',detail="all"'), "{{agent}} {{direction}}")]),
        ("Time to the first chunk of a model, 95th percentile", "timeseries", "s", [(quantile(0.95, "a2a_model_first_chunk_seconds", "agent, "), "{{agent}}")]),
        ("Calls of tools per second", "timeseries", "ops", [(rate("a2a_tool_calls_total", "server, result"), "{{server}} {{result}}")]),
    ],
    "Store and push notifications": [
        ("Duration of commits, 99th percentile", "timeseries", "s", [(quantile(0.99, "a2a_commit_duration_seconds", "", SERVER), "commit")]),
        ("Size of the store", "timeseries", "bytes", [
            (gauge("a2a_store_bytes", "file"), "{{file}}"), (gauge("a2a_limit_max", "", AGENT + ',limit="store.max_size"'), "limit"),
        ]),
        ("Stored tasks", "timeseries", "none", [(gauge("a2a_store_tasks", "state"), "{{state}}")]),
        ("Push notifications: lag", "timeseries", "s", [(f"max(a2a_push_lag_seconds{{{SERVER}}})", "lag")]),
        ("Push notifications per second", "timeseries", "ops", [
            (rate("a2a_push_attempts_total", "outcome", SERVER), "{{outcome}}"), (f"sum(rate(a2a_push_dead_letters_total{{{SERVER}}}{WINDOW}))", "given up"),
        ]),
    ],
    "Limits and process": [
        ("Use of limits", "bargauge", "percent", [(f"100 * max by (agent, limit) (a2a_limit_used{{{AGENT}}} / a2a_limit_max{{{AGENT}}})", "{{agent}} {{limit}}")]),
        ("Rejections per second by limit", "timeseries", "ops", [(rate("a2a_limit_rejections_total", "limit", SERVER), "{{limit}}")]),
        ("Rejected credentials per second", "timeseries", "ops", [(rate("a2a_auth_failures_total", "method, reason", SERVER), "{{method}} {{reason}}")]),
        ("Memory", "timeseries", "bytes", [(f"process_resident_memory_bytes{{{SERVER}}}", "{{instance}}")]),
        ("Processor", "timeseries", "percentunit", [(f"rate(process_cpu_seconds_total{{{SERVER}}}{WINDOW})", "{{instance}}")]),
        ("Open files", "timeseries", "none", [(f"process_open_fds{{{SERVER}}}", "{{instance}}"), (f"min(process_max_fds{{{SERVER}}})", "limit")]),
        ("Spans per second", "timeseries", "ops", [(rate("a2a_otlp_spans_total", "result", SERVER), "{{result}}")]),
    ],
}

# Panels of a row, by their number.
WIDTHS = {5: [5, 5, 5, 5, 4], 6: [4] * 6, 7: [4, 4, 4, 3, 3, 3, 3]}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panel(number, title, kind, unit, queries, x, y, width):
    instant = kind in ("stat", "table", "bargauge")
    target = lambda at, query, legend: {
        "datasource": SOURCE, "expr": query, "legendFormat": legend or "__auto", "refId": "ABCDEF"[at], "instant": instant,
        "range": not instant, "format": "table" if kind == "table" else "heatmap" if kind == "heatmap" else "time_series",
    }
    made = {
        "id": number, "title": title, "type": kind, "datasource": SOURCE, "gridPos": {"h": 8, "w": width, "x": x, "y": y},
        "targets": [target(at, query, legend) for at, (query, legend) in enumerate(queries)],
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []}, "options": {},
    }
    if kind == "stat":
        bad = 0 if title == "Ready" else 1
        steps = [{"color": "red" if bad == 0 else "green", "value": None}, {"color": "green" if bad == 0 else "red", "value": 1}]
        made["fieldConfig"]["defaults"]["thresholds"] = {"mode": "absolute", "steps": steps}
        made["options"] = {"colorMode": "background"}
    elif kind == "state-timeline":
        values = {"0": {"text": "down", "color": "red"}, "1": {"text": "up", "color": "green"}}
        made["fieldConfig"]["defaults"]["mappings"] = [{"type": "value", "options": values}]
    elif kind == "bargauge":
        steps = [{"color": color, "value": value} for color, value in (("green", None), ("orange", 70), ("red", 90))]
        made["fieldConfig"]["defaults"] |= {"max": 100, "thresholds": {"mode": "absolute", "steps": steps}}
        made["options"] = {"orientation": "horizontal", "displayMode": "gradient"}
    elif kind == "heatmap":
        made["options"] = {"calculate": False, "yAxis": {"unit": unit}}
    elif kind == "table":
        hidden = {name: True for name in ("Time", "Value", "__name__", "job")}
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return made


def variable(name, label, query, **options):
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name}, "definition": query,
        "refresh": 2, "includeAll": True, "multi": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}, "sort": 1, **options,
    }


def dashboard():
    panels, y = [], 0
    for row, rows in ROWS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": row, "collapsed": False, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "panels": []})
        x, y = 0, y + 1
        for (title, kind, unit, queries), width in zip(rows, WIDTHS[len(rows)]):
            panels.append(panel(len(panels) + 1, title, kind, unit, queries, x, y, width))
            x += width
        y += 8
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}, "hide": 0}
    variables = [source, variable("instance", "Server", "label_values(a2a_ready, instance)"), variable("agent", "Agent", "label_values(a2a_turns, agent)")]
    return {
        "uid": "a2a-overview", "title": "A2A server", "tags": ["a2a"], "schemaVersion": 39, "version": 1, "editable": True, "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"}, "timezone": "browser", "templating": {"list": variables}, "panels": panels,
    }


text = json.dumps(dashboard(), indent=1) + "\n"
if sys.argv[1:] == ["--check"]:
    sys.exit(0 if FILE.exists() and FILE.read_text() == text else f"{FILE} is not as {__file__} would write it")
FILE.write_text(text)
