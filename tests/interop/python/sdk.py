"""The Python SDK against the demo agent, over each binding that the agent card names: python sdk.py http://HOST:PORT"""

import asyncio
import sys
from importlib.metadata import version

import grpc
import harness
from a2a.client import ClientConfig, create_client
from a2a.helpers import new_text_message
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict

URL = sys.argv[1]
COMPLETED = TaskState.TASK_STATE_COMPLETED


def request(text, task=None, **configuration):
    ids = {'task_id': task.id, 'context_id': task.context_id} if task else {}
    return SendMessageRequest(
        message=new_text_message(text, role=Role.ROLE_USER, **ids),
        configuration=SendMessageConfiguration(**configuration),
    )


def text(artifact):
    return ''.join(part.text for part in artifact.parts)


def equal(got, expected):
    assert got == expected, f'{got!r} is not {expected!r}'


async def raises(error, awaitable):
    try:
        got = await awaitable
    except error:
        return
    raise AssertionError(f'{got!r} and no {error.__name__}')


class Tests:
    """What is tested over a binding: each method whose name does not begin with an underscore."""

    def __init__(self, client, streaming):
        self._client, self._streaming = client, streaming

    async def _send(self, *args, **kwargs):
        """What the one answer to a message is."""
        (answer,) = [it async for it in self._client.send_message(request(*args, **kwargs))]
        return getattr(answer, answer.WhichOneof('payload'))

    async def _events(self, text, task=None):
        return [it async for it in self._streaming.send_message(request(text, task))]

    async def send(self):
        task = await self._send('hello')
        equal(task.status.state, COMPLETED)
        equal([text(it) for it in task.artifacts], ['hello'])

    async def send_text_of_every_script(self):
        said = 'naïve Ω 漢字 \U0001f980 "\\\n\t\u2028 end'
        equal(text((await self._send(said)).artifacts[0]), said)

    async def stream(self):
        events = await self._events('/stream 5 10')
        kinds = [it.WhichOneof('payload') for it in events]
        equal(kinds, ['task', 'status_update', *['artifact_update'] * 5, 'status_update'])
        equal(events[1].status_update.status.state, TaskState.TASK_STATE_WORKING)
        chunks = [it.artifact_update for it in events[2:-1]]
        equal([it.append for it in chunks], [False, True, True, True, True])
        equal([it.last_chunk for it in chunks], [False, False, False, False, True])
        equal([text(it.artifact) for it in chunks], [f'chunk {n} of 5\n' for n in range(1, 6)])
        equal(len({it.artifact.artifact_id for it in chunks}), 1)
        equal(events[-1].status_update.status.state, COMPLETED)
        task = await self._client.get_task(GetTaskRequest(id=events[0].task.id))
        equal([text(it) for it in task.artifacts], [''.join(f'chunk {n} of 5\n' for n in range(1, 6))])

    async def get_task(self):
        sent = await self._send('hello')
        task = await self._client.get_task(GetTaskRequest(id=sent.id))
        equal((task.id, task.context_id, task.status.state), (sent.id, sent.context_id, COMPLETED))
        equal([it.role for it in task.history], [Role.ROLE_USER])
        task = await self._client.get_task(GetTaskRequest(id=sent.id, history_length=0))
        equal(len(task.history), 0)

    async def list_tasks(self):
        first = await self._send('one')
        again = request('two')
        again.message.context_id = first.context_id
        async for _ in self._client.send_message(again):
            pass
        query = ListTasksRequest(context_id=first.context_id, page_size=1, status=COMPLETED, include_artifacts=True)
        page = await self._client.list_tasks(query)
        equal((len(page.tasks), page.total_size, text(page.tasks[0].artifacts[0])), (1, 2, 'two'))
        query.page_token = page.next_page_token
        page = await self._client.list_tasks(query)
        equal((page.tasks[0].id, page.next_page_token), (first.id, ''))

    async def cancel(self):
        task = await self._send('/slow 30', return_immediately=True)
        canceled = await self._client.cancel_task(CancelTaskRequest(id=task.id))
        equal(canceled.status.state, TaskState.TASK_STATE_CANCELED)
        completed = await self._send('hello')
        await raises(TaskNotCancelableError, self._client.cancel_task(CancelTaskRequest(id=completed.id)))

    async def input_required(self):
        asked = await self._send('/ask What?')
        equal(asked.status.state, TaskState.TASK_STATE_INPUT_REQUIRED)
        equal(text(asked.status.message), 'What?')
        done = await self._send('That.', task=asked)
        equal((done.id, done.status.state, text(done.artifacts[0])), (asked.id, COMPLETED, 'That.'))

    async def input_required_in_streams(self):
        asked = await self._events('/ask What?')
        last = asked[-1].task if asked[-1].HasField('task') else asked[-1].status_update
        equal(last.status.state, TaskState.TASK_STATE_INPUT_REQUIRED)
        task = await self._client.get_task(GetTaskRequest(id=asked[0].task.id))
        done = await self._events('That.', task)
        equal(done[0].task.id, task.id)
        equal(done[-1].status_update.status.state, COMPLETED)

    async def subscribe(self):
        task = await self._send('/stream 20 50', return_immediately=True)
        events = [it async for it in self._streaming.subscribe(SubscribeToTaskRequest(id=task.id))]
        equal(events[0].task.id, task.id)
        # What the task had when the subscription began, and what came then, are the whole.
        chunks = [text(it) for it in events[0].task.artifacts]
        chunks += [text(it.artifact_update.artifact) for it in events if it.HasField('artifact_update')]
        equal(''.join(chunks), ''.join(f'chunk {n} of 20\n' for n in range(1, 21)))
        equal(events[-1].status_update.status.state, COMPLETED)

    async def subscribe_after_leaving(self):
        stream = self._streaming.send_message(request('/stream 20 50'))
        task = (await anext(stream)).task
        await stream.aclose()
        events = [it async for it in self._streaming.subscribe(SubscribeToTaskRequest(id=task.id))]
        equal(events[-1].status_update.status.state, COMPLETED)

    async def unknown_task(self):
        await raises(TaskNotFoundError, self._client.get_task(GetTaskRequest(id='nobody')))
        await raises(TaskNotFoundError, self._client.cancel_task(CancelTaskRequest(id='nobody')))
        await raises(TaskNotFoundError, anext(self._streaming.subscribe(SubscribeToTaskRequest(id='nobody'))))
        unknown = request('hello')
        unknown.message.task_id = 'nobody'
        await raises(TaskNotFoundError, anext(self._client.send_message(unknown)))
        await raises(TaskNotFoundError, anext(self._streaming.send_message(unknown)))

    async def message_only(self):
        message = await self._send('/message hi')
        equal((message.role, text(message)), (Role.ROLE_AGENT, 'hi'))
        (event,) = await self._events('/message hi')
        equal(text(event.message), 'hi')

    async def parts(self):
        words, raw, url, data = (await self._send('/parts')).artifacts[0].parts
        equal((words.text, raw.raw, raw.filename), ('A text part.', b'A raw part.\n', 'raw.txt'))
        equal((url.url, url.media_type), ('https://example.com/map.png', 'image/png'))
        equal(MessageToDict(data.data), {'a': 'data part', 'numbers': [1, 2.5], 'nothing': None})

    async def failure(self):
        task = await self._send('/fail no such city')
        equal((task.status.state, text(task.status.message)), (TaskState.TASK_STATE_FAILED, 'no such city'))


async def main():
    for binding in ['JSONRPC', 'HTTP+JSON', 'GRPC']:

        async def connect(**config):
            config = ClientConfig(
                supported_protocol_bindings=[binding], grpc_channel_factory=grpc.aio.insecure_channel, **config
            )
            return await create_client(URL, config)

        async with await connect(streaming=False) as client, await connect() as streaming:
            tests = Tests(client, streaming)
            for name in [it for it in vars(Tests) if not it.startswith('_')]:
                await harness.check(f'a2a-sdk {version("a2a-sdk")} {binding} {name}', getattr(tests, name))


asyncio.run(main())
sys.exit(harness.failures > 0)
