"""What the Python agents share: the commands of their messages, and their sockets.

| Message       | Effect                                                       |
| /message TEXT | a message without a task                                     |
| /stream N     | an artifact in N chunks, then COMPLETED                      |
| /slow         | WORKING until the task is canceled, or for 20 s              |
| /ask QUESTION | INPUT_REQUIRED; the next message completes the task          |
| /fail REASON  | FAILED                                                       |
| other text    | an artifact with the text, then COMPLETED                    |
"""

import asyncio
import socket
import sys


async def respond(text, is_follow_up, task):
    """Handles a message. `task` has the methods working, chunk, ask, fail and complete."""
    command, _, rest = text.partition(' ')
    if is_follow_up:
        command, rest = '', text
    if command == '/ask':
        return await task.ask(rest)
    if command == '/fail':
        return await task.fail(rest)
    await task.working()
    if command == '/slow':
        await asyncio.sleep(20)
    count = int(rest) if command == '/stream' else 1
    for n in range(1, count + 1):
        chunk = f'chunk {n} of {count}\n' if command == '/stream' else text
        await task.chunk(chunk, append=n > 1, last=n == count)
        await asyncio.sleep(0.02)
    await task.complete()


def bound_socket(port=0):
    """A socket on a loopback port, by default a free one."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(('127.0.0.1', port))
    bound.listen()
    return bound


def given_port():
    """The port in the arguments of the program, or 0."""
    return int(sys.argv[1]) if len(sys.argv) > 1 else 0


async def end_of_input():
    await asyncio.to_thread(sys.stdin.read)
