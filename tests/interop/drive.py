"""The program `a2a` against an agent on another SDK: python drive.py [--gateway] NAME A2A VERSIONS COMMAND...

Starts the agent with COMMAND, and calls it over each binding of VERSIONS (`1.0,0.3`), with the commands of
python/agent_texts.py. Prints a line for each test, which scripts/interop counts. Also runs the example `send` that was built
next to the program, if there is one.

With --gateway, serves a gateway of the agent with `a2a serve --upstream`, and calls that: over gRPC of 1.0 and JSON-RPC of 0.3,
whatever the agent has. Also ends the gateway and the agent during streams. COMMAND takes a port to listen on.
"""

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

IS_GATEWAY = sys.argv[1] == '--gateway'
NAME, A2A, VERSIONS, *COMMAND = sys.argv[1 + IS_GATEWAY:]
VERSIONS = VERSIONS.split(',')
# Tests of agents that have JSON-RPC only, tasks of one message and no chunks.
ONLY = {'FastA2A': ['card', 'send', 'answer_as_a_stream', 'answer_in_a_chat']}
BINDINGS = ['jsonrpc'] if NAME in ONLY else ['jsonrpc', 'rest', 'grpc']
# Tests that a server can't pass, by the name of its agent, binding, version and test. `None` stands for any.
DEVIATIONS = [
    ('Go', 'rest', '0.3', None, 'its HTTP+JSON of 0.3 reads and writes the JSON of JSON-RPC, in snake case'),
    ('Go', None, None, 'list', 'its lists require an authenticated user'),
    ('Python 0.3', None, None, 'canceled_stream', 'it sends a cancel to the caller of cancel only, and leaves streams open'),
    ('Python 0.3', None, None, 'subscription', 'its subscriptions begin with no event, and do not end with a cancel'),
]
# The program reads no configuration of the developer.
ENVIRONMENT = {'PATH': os.environ['PATH'], 'HOME': '/nonexistent'}
failures = 0


class Skipped(Exception):
    """A test that does not apply to this server."""


class Failed(Exception):
    """An unexpected result."""


def check(condition, what):
    if not condition:
        raise Failed(what)


def equal(got, expected):
    check(got == expected, f'{got!r} is not {expected!r}')


class Agent:
    """An agent over one binding of one version."""

    def __init__(self, url, binding, version, card):
        self.url, self.version, self.binding, self.card = url, version, binding, card
        self.flags = ['--binding', binding, '--protocol', version]

    def command(self, *words):
        command, words = words[0].split(), list(words[1:])
        return [A2A, *command, self.url, *words, *self.flags, '--timeout', '15s', '-o', 'jsonl']

    def run(self, *words, stdin=''):
        return subprocess.run(self.command(*words), env=ENVIRONMENT, input=stdin, capture_output=True, text=True, timeout=25)

    def call(self, *words):
        """The lines of JSON that a command prints."""
        done = self.run(*words)
        check(done.returncode == 0, f'{words} ends with {done.returncode}: {done.stderr}')
        return [json.loads(line) for line in done.stdout.splitlines()]

    def one(self, *words):
        lines = self.call(*words)
        check(len(lines) == 1, f'{words} prints {lines}')
        return lines[0]

    def error(self, *words):
        done = self.run(*words)
        check(done.returncode != 0, f'{words} succeeds: {done.stdout}')
        return done.stderr

    def start(self, *words):
        return subprocess.Popen(self.command(*words), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Proxy:
    """Proxies in front of the ports of an agent, which break the first connection that has sent certain bytes.

    They replace the ports on the card, so that all calls pass them. A port has five digits, as has its proxy.
    """

    def __init__(self, card, marker):
        self.marker, self.is_cut = marker, False
        ports = sorted({int(port) for port in re.findall(r'127\.0\.0\.1:(\d+)', json.dumps(card))})
        self.listeners, self.ports = [], {}
        for port in ports:
            listener = socket.create_server(('127.0.0.1', 0))
            self.listeners.append(listener)
            self.ports[port] = listener.getsockname()[1]
            threading.Thread(target=self.accept, args=(listener, port), daemon=True).start()
        check(all(len(str(port)) == len(str(proxy)) for port, proxy in self.ports.items()), self.ports)
        first = int(re.search(r'http://127\.0\.0\.1:(\d+)', json.dumps(card))[1])
        self.url = f'http://127.0.0.1:{self.ports[first]}'

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for listener in self.listeners:
            listener.close()

    def accept(self, listener, port):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(('127.0.0.1', port))
            for source, target, is_response in ((client, server, False), (server, client, True)):
                threading.Thread(target=self.copy, args=(source, target, is_response), daemon=True).start()

    def copy(self, source, target, is_response):
        try:
            while data := source.recv(65536):
                for port, proxy in self.ports.items():
                    old, new = (port, proxy) if is_response else (proxy, port)
                    data = data.replace(b'127.0.0.1:%d' % old, b'127.0.0.1:%d' % new)
                target.sendall(data)
                if is_response and not self.is_cut and self.marker in data:
                    self.is_cut = True
                    break
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def state(task):
    return task['status']['state'].removeprefix('TASK_STATE_')


def text(parts):
    return ''.join(part.get('text', '') for part in parts)


def output(task):
    return ''.join(text(artifact['parts']) for artifact in task.get('artifacts', []))


def states(events):
    found = [event.get('task', event.get('statusUpdate')) for event in events]
    return [state(event) for event in found if event]


def chunks(events):
    return [text(event['artifactUpdate']['artifact']['parts']) for event in events if 'artifactUpdate' in event]


def line_of(process, seconds=15):
    """The next line of JSON that a program prints."""
    lines = queue.Queue()
    threading.Thread(target=lambda: lines.put(process.stdout.readline()), daemon=True).start()
    return json.loads(lines.get(timeout=seconds))


def ended(process, code=0):
    """What else a program prints until its end, which must have this exit code."""
    out, err = process.communicate(timeout=15)
    check(process.returncode == code, f'{process.args} ends with {process.returncode}: {err}')
    return [json.loads(line) for line in out.splitlines()]


class Tests:
    def card(self, agent):
        card = agent.one('discover')
        check(card['name'].endswith(' agent'), card)
        check(card['capabilities']['streaming'], card)
        equal([skill['id'] for skill in card['skills']], ['echo'])

    def send(self, agent):
        said = 'naïve Ω 漢字 \U0001f980 "\\ end'
        task = agent.one('send', said)
        equal((state(task), output(task)), ('COMPLETED', said))
        # The SDK of 1.0.3 leaves the history of 0.3 out over REST and gRPC.
        if 'history' in task or NAME != 'Python 1.0.3':
            equal(text(task['history'][0]['parts']), said)
        got = agent.one('get task', task['id'])
        equal((got['id'], state(got), output(got)), (task['id'], 'COMPLETED', said))

    def reply_without_a_task(self, agent):
        if IS_GATEWAY:
            raise Skipped('a send with an idempotency key, as those of `a2a`, always has a task')
        equal(text(agent.one('send', '/message hi')['parts']), 'hi')

    def reply_without_a_task_as_a_stream(self, agent):
        if IS_GATEWAY:
            raise Skipped('a send with an idempotency key, as those of `a2a`, always has a task')
        equal(text(agent.one('stream', '/message hi')['message']['parts']), 'hi')

    def stream(self, agent):
        events = agent.call('stream', '/stream 4')
        expected = [f'chunk {n} of 4\n' for n in range(1, 5)]
        # A gateway may join chunks.
        equal(''.join(chunks(events)) if IS_GATEWAY else chunks(events), ''.join(expected) if IS_GATEWAY else expected)
        equal(states(events)[-1], 'COMPLETED')
        check('WORKING' in states(events), events)

    def answer_as_a_stream(self, agent):
        events = agent.call('stream', 'streamed')
        equal(states(events)[-1], 'COMPLETED')
        snapshots = [output(event['task']) for event in events if 'task' in event]
        equal(''.join(chunks(events)) or snapshots[-1], 'streamed')

    def answer_in_a_chat(self, agent):
        done = subprocess.run(
            [A2A, 'chat', agent.url, *agent.flags], env=ENVIRONMENT, input='typed\n', capture_output=True, text=True, timeout=25,
        )
        # The program does not repeat what was typed.
        check(done.returncode == 0 and 'typed' in done.stdout, f'{done}')

    def failure(self, agent):
        task = agent.one('send', '/fail no such city', '--exit-status=false')
        equal((state(task), text(task['status']['message']['parts'])), ('FAILED', 'no such city'))
        equal(agent.run('send', '/fail again').returncode, 1)

    def follow_up(self, agent):
        asked = agent.one('send', '/ask Which city?')
        equal((state(asked), text(asked['status']['message']['parts'])), ('INPUT_REQUIRED', 'Which city?'))
        done = agent.one('send', 'Rome', '--task', asked['id'], '--context', asked['contextId'])
        equal((done['id'], state(done), output(done)), (asked['id'], 'COMPLETED', 'Rome'))

    def follow_up_as_a_stream(self, agent):
        events = agent.call('stream', '/ask Which city?')
        equal(states(events)[-1], 'INPUT_REQUIRED')
        asked = next(event['statusUpdate'] for event in events if 'statusUpdate' in event)
        events = agent.call('stream', 'Rome', '--task', asked['taskId'], '--context', asked['contextId'])
        equal((states(events)[-1], chunks(events)), ('COMPLETED', ['Rome']))

    def conversation(self, agent):
        done = subprocess.run(
            [A2A, 'chat', agent.url, *agent.flags], env=ENVIRONMENT, input='/ask Which city?\nRome\n', capture_output=True,
            text=True, timeout=25,
        )
        check(done.returncode == 0 and 'Which city?' in done.stdout and 'Rome' in done.stdout, f'{done}')

    def _canceled_while_streaming(self, agent, is_checked):
        events = agent.start('stream', '/slow')
        try:
            first = line_of(events)
            task = first['task']['id'] if 'task' in first else first['statusUpdate']['taskId']
            # The agent has begun.
            if states([first]) != ['WORKING']:
                line_of(events)
            equal(state(agent.one('cancel', task)), 'CANCELED')
            if is_checked:
                equal(states(ended(events, code=1))[-1], 'CANCELED')
            equal(state(agent.one('get task', task)), 'CANCELED')
        finally:
            events.kill()

    def cancel(self, agent):
        self._canceled_while_streaming(agent, is_checked=False)

    def canceled_stream(self, agent):
        self._canceled_while_streaming(agent, is_checked=True)

    def send_without_waiting(self, agent):
        task = agent.one('send', '/slow', '--immediate')
        check(state(task) in ('SUBMITTED', 'WORKING'), task)
        equal(state(agent.one('cancel', task['id'])), 'CANCELED')

    def subscription(self, agent):
        task = agent.one('send', '/slow', '--immediate')
        subscribed = agent.start('subscribe', task['id'])
        try:
            line_of(subscribed)
            agent.one('cancel', task['id'])
            equal(states(ended(subscribed, code=1))[-1], 'CANCELED')
        finally:
            subscribed.kill()

    def interrupted_stream(self, agent):
        with Proxy(agent.card, b'chunk 3 of 60') as proxy:
            events = Agent(proxy.url, agent.binding, agent.version, agent.card).call('stream', '/stream 60')
        check(proxy.is_cut, 'the connection was not cut')
        equal(states(events)[-1], 'COMPLETED')
        updates = [event['artifactUpdate'] for event in events if 'artifactUpdate' in event]
        if any('urn:a2a-service:resume:v1/gap' in update.get('metadata', {}) for update in updates):
            # The server sends no snapshot, and the client marks that chunks are missing.
            return
        # After the interruption, a snapshot has the chunks that were missed.
        snapshots = [output(event['task']) for event in events if 'task' in event]
        received = ''.join(chunks(events)) + ''.join(snapshots)
        equal([n for n in range(1, 61) if f'chunk {n} of 60\n' not in received], [])

    def list(self, agent):
        if agent.version == '0.3':
            raise Skipped('protocol 0.3 has no lists of tasks')
        task = agent.one('send', 'listed')
        equal([found['id'] for found in agent.one('list tasks', '--context', task['contextId'])['tasks']], [task['id']])

    def unknown_task(self, agent):
        for words in (['get task', 'no-such-task'], ['cancel', 'no-such-task'], ['send', 'hi', '--task', 'no-such-task']):
            error = agent.error(*words)
            check('not found' in error.lower(), f'{words}: {error}')
        agent.error('subscribe', 'no-such-task')

    def terminal_task(self, agent):
        task = agent.one('send', 'done')
        agent.error('send', 'more', '--task', task['id'], '--context', task['contextId'])
        agent.error('cancel', task['id'])


def deviation(binding, version, test):
    """Why a test is skipped, or None. A gateway does what its agent can't do."""
    if NAME in ONLY and test not in ONLY[NAME]:
        return 'its tasks have one message each, and no chunks'
    if IS_GATEWAY:
        return None
    for agent, *where, why in DEVIATIONS:
        if agent == NAME and all(own in (None, given) for own, given in zip(where, (binding, version, test))):
            return why
    return None


def report(name, run, why=None):
    global failures
    try:
        if why:
            raise Skipped(why)
        run()
        print(f'ok {name}', flush=True)
    except Skipped as skipped:
        print(f'skipped {name}: {skipped}', flush=True)
    except Exception as error:
        failures += 1
        print(f'FAILED {name}\n    ' + f'{type(error).__name__}: {error}'.replace('\n', '\n    '), flush=True)


def five_lines(url):
    """The client in README.md, as the example `send`."""
    example = os.path.join(os.path.dirname(A2A), 'examples', 'send')
    if not os.path.exists(example):
        raise Skipped('the example `send` was not built')
    done = subprocess.run([example, url, 'five lines'], env=ENVIRONMENT, capture_output=True, text=True, timeout=25)
    equal((done.returncode, done.stdout), (0, 'five lines\n'))


def listening(process, seconds=60):
    """The URL at which a server listens, from its output, which is read on."""
    lines = queue.Queue()
    threading.Thread(target=lambda: [lines.put(line) for line in process.stdout], daemon=True).start()
    return lines.get(timeout=seconds).removeprefix('listening on ').strip()


def start_agent(*arguments):
    """Starts the agent. Returns it and its URL."""
    server = subprocess.Popen(
        [*COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return server, listening(server)


def end_agent(server):
    server.stdin.close()
    until = time.monotonic() + 10
    while server.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    server.kill()


def card_of(url):
    found = subprocess.run([A2A, 'discover', url, '-o', 'json'], env=ENVIRONMENT, capture_output=True, timeout=25)
    return json.loads(found.stdout)


class Gateway:
    """A gateway of an agent, with tasks in a file."""

    def __init__(self, upstream, directory):
        self.command = [A2A, 'serve', '--upstream', upstream, '--listen', '127.0.0.1:0', '--log-filter', 'error']
        self.command += ['--store', f'sqlite:{directory}/a2a.db']
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = listening(self.process)

    def agent(self, binding='grpc', version='1.0'):
        return Agent(self.url, binding, version, card_of(self.url))

    def restart(self):
        """Kills the process, and starts it again."""
        self.process.kill()
        self.process.wait()
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def settled(agent, task):
    """A task in the state in which its turn has ended."""
    until = time.monotonic() + 30
    while True:
        found = agent.one('get task', task)
        if state(found) not in ('SUBMITTED', 'WORKING') or time.monotonic() > until:
            return found
        time.sleep(0.1)


def begin(agent, message):
    """Sends a message, and waits for the first chunk of its artifact. Returns the id of the task."""
    events = agent.start('stream', message)
    task = None
    try:
        while True:
            event = line_of(events)
            task = task or event.get('task', {}).get('id')
            if 'artifactUpdate' in event:
                return task
    finally:
        events.kill()


def complete(task, count):
    """Checks that an artifact has all chunks in their order."""
    found = output(task).splitlines()
    if NAME == 'Python 0.3':
        # This SDK adds chunks once for each of the streams of a task.
        found = list(dict.fromkeys(found))
    equal(found, [f'chunk {n} of {count}' for n in range(1, count + 1)])


class GatewayTests:
    """Interruptions between a gateway, its clients and its agent."""

    def gateway_killed_during_a_stream(self, upstream, directory):
        with Gateway(upstream, directory) as gateway:
            task = begin(gateway.agent(), '/stream 100')
            gateway.restart()
            done = settled(gateway.agent(), task)
            equal((state(done), len(done['artifacts'])), ('COMPLETED', 1))
            complete(done, 100)
            if '1.0' in VERSIONS:
                direct = Agent(upstream, 'jsonrpc', '1.0', card_of(upstream))
                [listed] = direct.one('list tasks', '--context', done['contextId'])['tasks']
                original = direct.one('get task', listed['id'])
                equal((state(original), output(original)), (state(done), output(done)))

    def connection_to_the_agent_cut_during_a_stream(self, upstream, directory):
        with Proxy(card_of(upstream), b'chunk 3 of 60') as proxy, Gateway(proxy.url, directory) as gateway:
            events = gateway.agent().call('stream', '/stream 60')
            check(proxy.is_cut, 'the connection was not cut')
            messages = [event['statusUpdate']['status'].get('message', {}) for event in events if 'statusUpdate' in event]
            check(any(message.get('metadata', {}).get('upstreamGap') for message in messages), f'no gap in {messages}')
            done = gateway.agent().one('get task', events[0]['task']['id'])
            equal(state(done), 'COMPLETED')
            complete(done, 60)

    def agent_that_has_lost_its_task(self, _, directory):
        server, upstream = start_agent()
        try:
            with Gateway(upstream, directory) as gateway:
                task = begin(gateway.agent(), '/stream 1000')
                server.kill()
                server.wait()
                server, _ = start_agent(upstream.rsplit(':', 1)[1])
                done = settled(gateway.agent(), task)
                message = text(done['status']['message']['parts'])
                equal((state(done), message), ('FAILED', 'The upstream agent has lost the task.'))
        finally:
            end_agent(server)


def run_tests(agent, where):
    for test, run in vars(Tests).items():
        if not test.startswith('_'):
            name = f'{NAME} agent{where}, {agent.binding} {agent.version}: {test.replace("_", " ")}'
            report(name, lambda: run(Tests(), agent), deviation(agent.binding, agent.version, test))


def run_gateway_tests(upstream):
    with tempfile.TemporaryDirectory() as directory, Gateway(upstream, directory) as gateway:
        for binding, version in (('grpc', '1.0'), ('jsonrpc', '0.3')):
            run_tests(gateway.agent(binding, version), ' behind a gateway')
    for test, run in vars(GatewayTests).items():
        if not test.startswith('_') and NAME not in ONLY:
            with tempfile.TemporaryDirectory() as directory:
                report(f'{NAME} agent behind a gateway: {test.replace("_", " ")}', lambda: run(GatewayTests(), upstream, directory))


def main():
    server, url = start_agent()
    try:
        if IS_GATEWAY:
            run_gateway_tests(url)
        else:
            card = card_of(url)
            report(f'{NAME} agent: five lines', lambda: five_lines(url))
            for version in VERSIONS:
                for binding in BINDINGS:
                    run_tests(Agent(url, binding, version, card), '')
    finally:
        end_agent(server)
    sys.exit(failures > 0)


main()
