#!/usr/bin/env python3
"""Alert rules and dashboard without a server: promtool checks the rules, runs their tests, and parses each query of the dashboard."""

import json
import os
import subprocess

from common import ROOT, WORK, check, run

PROMTOOL = os.environ["PROMTOOL"]


def promtool(*arguments, cwd=ROOT / "deploy/prometheus"):
    made = subprocess.run([PROMTOOL, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120)
    return made.returncode == 0, made.stdout + made.stderr


def queries():
    """Returns the queries of the dashboard, with its variables replaced: title of the panel and expression."""
    dashboard = json.loads((ROOT / "deploy/grafana/a2a.json").read_text())
    replaced = {"$instance": ".*", "$agent": ".*", "$__rate_interval": "1m"}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, text in replaced.items():
                expression = expression.replace(name, text)
            yield panel["title"], expression


def rules():
    check("promtool check rules", *promtool("check", "rules", "a2a.rules.yml"))
    check("promtool test rules", *promtool("test", "rules", "a2a.rules.test.yml"))


def dashboard():
    made = subprocess.run(["python3", ROOT / "deploy/grafana/dashboard.py", "--check"], capture_output=True, text=True)
    check("a2a.json is what dashboard.py writes", made.returncode == 0, made.stderr)
    recording = [{"record": f"panel:query{at}", "expr": expression} for at, (_, expression) in enumerate(queries())]
    file = WORK / "dashboard.rules.yml"
    # JSON is YAML.
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": recording}]}))
    check(f"the {len(recording)} queries of the dashboard are valid", *promtool("check", "rules", file))


if __name__ == "__main__":
    run(rules, dashboard)
