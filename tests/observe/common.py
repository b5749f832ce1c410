"""What the areas of scripts/observe share: results, servers of the program under test, their metrics, and waiting."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("PROGRAM", str(ROOT / "target/release/a2a"))
WORK = pathlib.Path(os.environ.get("WORK", ROOT / "target/observe"))
AREA = pathlib.Path(sys.argv[0]).stem
failures = 0


def check(name, is_ok, detail=""):
    """Prints a result: `ok AREA: NAME`, or FAILED with the detail."""
    global failures
    if is_ok:
        print(f"ok {AREA}: {name}", flush=True)
    else:
        failures += 1
        print(f"FAILED {AREA}: {name}", *(f"\n    {line}" for line in str(detail).splitlines()[:40]), flush=True)
    return bool(is_ok)


def skip(name, why):
    print(f"skipped {AREA}: {name}: {why}", flush=True)


def wait(condition, seconds=10, interval=0.05):
    """Waits until the condition holds, and returns its value; the last one if the time is over."""
    until = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(interval)
    return found


def request(url, body=None, headers=(), method=None, timeout=30):
    """Returns status, headers and body of the response. A body that is not bytes is sent as JSON."""
    headers = dict(headers)
    if body is not None and not isinstance(body, bytes):
        body, headers = json.dumps(body).encode(), {"content-type": "application/json", **headers}
    made = urllib.request.Request(url, body, headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(made, timeout=timeout) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def message(text, id=None, **more):
    return {"message": {"messageId": id or f"m-{time.monotonic_ns()}", "role": "ROLE_USER", "parts": [{"text": text}], **more}}


class Server:
    """A server in a directory of its own, with a file `a2a.toml`. Its output on stderr is in the file `log`."""

    def __init__(self, config="", *arguments, directory=None, env=None, listen="127.0.0.1:0"):
        self.directory = pathlib.Path(directory or tempfile.mkdtemp(prefix=f"{AREA}-", dir=WORK))
        self.log = self.directory / "log"
        self.log.unlink(missing_ok=True)
        if config:
            (self.directory / "a2a.toml").write_text(config)
        # Settings of the user who runs the script must not matter.
        clean = {name: text for name, text in os.environ.items() if not name.startswith(("A2A_", "OTEL_", "RUST_LOG"))}
        self.command, self.env = [PROGRAM, "serve", "--listen", listen, *arguments], {**clean, "NO_COLOR": "1", **(env or {})}
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.directory, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.output = []
        for line in self.process.stdout:
            self.output.append(line)
            if found := re.match(r"listening on (https?://\S+)", line):
                self.url = found[1].rstrip("/")
                break
        else:
            raise RuntimeError(f"the server does not start:\n{''.join(self.output)}{self.log.read_text()}")
        # Reads on, since a full pipe would block the server.
        threading.Thread(target=lambda: self.output.extend(self.process.stdout), daemon=True).start()

    def stop(self, how=signal.SIGTERM, timeout=30):
        """Ends the server, and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def a2a(self, *arguments, timeout=60):
        """Runs the program in the directory of the server."""
        command = [PROGRAM, *arguments]
        return subprocess.run(command, cwd=self.directory, env=self.env, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)

    def send(self, text, path="", headers=(), timeout=30, **more):
        """Sends a message over HTTP+JSON. Returns status, headers and the decoded body."""
        status, found, body = request(f"{self.url}{path}/message:send", message(text, **more), headers, timeout=timeout)
        return status, found, json.loads(body or b"null")

    def stream(self, text, path="", headers=(), timeout=30):
        """Sends a message and reads its stream to the end."""
        return request(f"{self.url}{path}/message:stream", message(text), headers, timeout=timeout)

    def metrics(self, headers=()):
        """Returns the text of /metrics."""
        return request(f"{self.url}/metrics", headers=headers)[2].decode()

    def series(self, headers=()):
        """Returns the values of all series by their name with labels."""
        return read_series(self.metrics(headers))

    def value(self, name, **labels):
        """Returns the sum of the series with this name and these labels. None without one."""
        found = [value for (series, given), value in labelled(self.metrics()) if series == name and labels.items() <= given.items()]
        return sum(found) if found else None


def read_series(text):
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def labelled(text):
    """Returns the series of the text format of Prometheus: name, labels and value."""
    found = []
    for series, value in read_series(text).items():
        name, _, rest = series.partition("{")
        labels = {label: text for label, text in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', rest)}
        found.append(((name, labels), value))
    return found


@contextlib.contextmanager
def stopping(*servers):
    """Stops everything that has `stop`, in any case."""
    try:
        yield
    finally:
        for server in servers:
            with contextlib.suppress(Exception):
                server.stop()


def run(*areas):
    """Runs the functions of an area. An exception is a failure of its function."""
    for area in areas:
        try:
            area()
        except Exception as error:  # noqa: BLE001
            import traceback
            check(area.__name__, False, "".join(traceback.format_exception(error)))
    sys.exit(1 if failures else 0)
