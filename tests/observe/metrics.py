#!/usr/bin/env python3
"""Metrics of a server with each kind of agent under load: their text, and Prometheus with each query of the dashboard."""

import concurrent.futures
import json
import os
import re
import subprocess
import sys
import urllib.parse

from common import ROOT, WORK, Server, check, request, run, stopping, wait
from peers import Endpoint, Mcp, Model, Webhook
from rules import PROMTOOL, queries

CONFIG = """
store.path = "sqlite:a2a.db"
store.max_size = "1GiB"
log.filter = "warn"
push.enabled = true
push.allow = ["http://127.0.0.1:{webhook}"]
{more}

[[agents]]
name = "demo"

[[agents]]
name = "lines"
exec.command = "wc -c"
card.description = "Counts bytes."
limits.turns = 2

[[agents]]
name = "endpoint"
http.url = "{endpoint}"

[[agents]]
name = "model"
openai.url = "{model}/v1"
openai.model = "test-model"
openai.mcp = [{{ name = "tools", command = ["{python}", "{peers}", "mcp"] }}, {{ name = "remote", url = "{mcp}/mcp" }}]

[[agents]]
name = "far"
upstream.url = "{upstream}"
"""


class Load:
    """A server with an agent of each kind, what these need, and calls of all of them."""

    def __init__(self, more="", **options):
        self.peers = [Webhook(), Endpoint(), Model(), Mcp()]
        webhook, endpoint, model, mcp = self.peers
        self.upstream = Server("", "--store", "memory", "--log-filter", "error")
        config = CONFIG.format(
            webhook=webhook.port, endpoint=endpoint.url, model=model.url, mcp=mcp.url, upstream=self.upstream.url,
            python=sys.executable, peers=ROOT / "tests/observe/peers.py", more=more,
        )
        self.server = Server(config, **options)
        self.webhook = webhook

    def round(self):
        """Calls each agent in several ways."""
        url, push = self.server.url, {"taskPushNotificationConfig": {"url": f"{self.webhook.url}/hook"}}
        def send(path, text, **body):
            sent = {"message": {"messageId": f"{path}-{os.urandom(6).hex()}", "role": "ROLE_USER", "parts": [{"text": text}]}, **body}
            return request(f"{url}{path}/message:send", sent, timeout=60)[0]
        calls = [lambda path=path: send(path, "hello") for path in ("", "/lines", "/endpoint", "/model", "/far") for _ in range(4)]
        calls += [lambda: send("", "/fail because"), lambda: send("", "/ask what"), lambda: send("", "/slow 0.2")]
        calls += [lambda: send("", "hello", configuration=push) for _ in range(3)]
        calls += [lambda: self.server.stream("/stream 5 20") for _ in range(3)]
        calls += [lambda: request(f"{url}/tasks/none"), lambda: request(f"{url}/message:send", {"message": {"messageId": "x" * 300}})]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return [made.result() for made in [pool.submit(call) for call in calls]]

    def stop(self):
        for stopped in (self.server, self.upstream, *self.peers):
            stopped.stop()


def loaded():
    load = Load()
    with stopping(load):
        statuses = load.round()
        check("each agent answers", set(statuses[:20]) == {200}, statuses)
        wait(lambda: load.server.value("a2a_push_attempts_total", outcome="success"))
        text = load.server.metrics()
        (WORK / "metrics.txt").write_text(text)
        made = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True)
        check("promtool check metrics", made.returncode == 0 and not made.stderr, made.stderr)
        scraped(load)


def scraped(load):
    """Prometheus reads the metrics of the server twice a second. Each query of the dashboard then has a result."""
    directory = WORK / "prometheus-data"
    subprocess.run(["rm", "-rf", directory])
    target = load.server.url.removeprefix("http://")
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "a2a", "static_configs": [{"targets": [target]}]}],
        "rule_files": [str(ROOT / "deploy/prometheus/a2a.rules.yml")],
    }
    file = WORK / "prometheus.yml"
    file.write_text(json.dumps(config))
    log = open(WORK / "prometheus.log", "wb")
    command = [os.environ["PROMETHEUS"], f"--config.file={file}", f"--storage.tsdb.path={directory}", "--web.listen-address=127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        listening = wait(lambda: re.search(r'msg="Listening on" address=(\S+)', (WORK / "prometheus.log").read_text()), 60)
        if not check("prometheus starts", listening, (WORK / "prometheus.log").read_text()[-2000:]):
            return
        url = f"http://{listening[1]}"

        def query(expression):
            status, _, body = request(f"{url}/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
            return json.loads(body)["data"]["result"] if status == 200 else []

        wait(lambda: query('up{job="a2a"} == 1'), 30)
        for _ in range(3):
            load.round()
        missing = {title: expression for title, expression in queries()}
        def all_found():
            for title, expression in queries():
                if title in missing and query(expression):
                    del missing[title]
            return not missing
        wait(all_found, 30, 1)
        count = len(list(queries()))
        check(f"each of the {count} queries of the dashboard has a result", not missing, json.dumps(missing, indent=1))
        firing = [alert["labels"]["alertname"] for alert in json.loads(request(f"{url}/api/v1/alerts")[2])["data"]["alerts"] if alert["state"] == "firing"]
        check("no alert fires", not firing, firing)
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    run(loaded)
