"""Push notifications for the Python SDK of protocol 0.3 or 0.2: python receive03.py URL EVENTS

The second server sends events instead of tasks."""

import sys
from importlib.metadata import version
from uuid import uuid4

import harness
import httpx
from a2a.types import (
    Message,
    MessageSendConfiguration,
    MessageSendParams,
    Part,
    PushNotificationConfig,
    Role,
    SendMessageRequest,
    SendMessageSuccessResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
    TextPart,
)
from harness import chunks, equal
from receiver import Receiver

URL, EVENTS = sys.argv[1:]
KINDS = {'task': Task, 'status-update': TaskStatusUpdateEvent, 'artifact-update': TaskArtifactUpdateEvent}


async def notifications(url):
    """The notifications of a task, as types of the SDK, and the task."""
    with Receiver() as receiver:
        message = Message(message_id=str(uuid4()), role=Role.user, parts=[Part(TextPart(text='/stream 3 50'))])
        configuration = MessageSendConfiguration(
            accepted_output_modes=['text/plain'],
            blocking=True,
            push_notification_config=PushNotificationConfig(url=receiver.url, token='a token'),
        )
        params = MessageSendParams(message=message, configuration=configuration)
        request = SendMessageRequest(id=str(uuid4()), params=params)
        async with httpx.AsyncClient(timeout=15) as http:
            answer = await http.post(f'{url}/rpc', json=request.model_dump(mode='json', by_alias=True, exclude_none=True))
        received = await receiver.until_completed()
    for it in received:
        equal((it.headers['x-a2a-notification-token'], it.headers['content-type']), ('a token', 'application/json'))
    task = SendMessageSuccessResponse.model_validate(answer.json()).result
    return [KINDS[it.body['kind']].model_validate(it.body) for it in received], task


def text(artifact):
    return ''.join(part.root.text for part in artifact.parts)


class Tests:
    async def tasks(self):
        tasks, task = await notifications(URL)
        equal({(it.kind, it.id) for it in tasks}, {('task', task.id)})
        equal(tasks[-1].status.state, TaskState.completed)
        equal([text(it) for it in tasks[-1].artifacts], [''.join(chunks(3))])

    async def events(self):
        events, task = await notifications(EVENTS)
        equal((events[0].kind, events[0].id), ('task', task.id))
        texts = [text(it.artifact) for it in events if it.kind == 'artifact-update']
        equal(''.join(texts), ''.join(chunks(3)))
        last = events[-1]
        equal((last.kind, last.task_id, last.status.state, last.final), ('status-update', task.id, 'completed', True))


async def main():
    await harness.check_all(f'a2a-sdk {version("a2a-sdk")} receives', Tests())


harness.run(main)
