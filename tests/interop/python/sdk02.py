"""The Python SDK of protocol 0.2 against the demo agent, over JSON-RPC: python sdk02.py URL OTHER

It has neither lists nor a way to subscribe again. The other server takes no push configurations, and
refuses media types that its card does not name."""

import sys
from base64 import b64encode
from importlib.metadata import version
from uuid import uuid4

import harness
import httpx
from a2a.client import A2ACardResolver, A2AClient
from a2a.types import (
    CancelTaskRequest,
    DataPart,
    FilePart,
    FileWithBytes,
    FileWithUri,
    GetTaskPushNotificationConfigParams,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    JSONRPCErrorResponse,
    Message,
    MessageSendConfiguration,
    MessageSendParams,
    Part,
    PushNotificationAuthenticationInfo,
    PushNotificationConfig,
    Role,
    SendMessageRequest,
    SendStreamingMessageRequest,
    SetTaskPushNotificationConfigRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TaskState,
    TextPart,
)
from a2a.utils import get_message_text, get_text_parts
from harness import all_of, chunks, equal

URL, OTHER = sys.argv[1:]
TASK_NOT_FOUND, NOT_CANCELABLE, NO_PUSH, CONTENT_TYPE, INVALID_PARAMS = -32001, -32002, -32003, -32005, -32602
WEBHOOK = PushNotificationConfig(id='p', url='https://hook.invalid/', token='t')


def params(*parts, task=None, task_id=None, **configuration):
    parts = [Part(TextPart(text=it) if isinstance(it, str) else it) for it in parts]
    ids = {'task_id': task.id, 'context_id': task.context_id} if task else {'task_id': task_id}
    message = Message(message_id=str(uuid4()), role=Role.user, parts=parts, **ids)
    return MessageSendParams(
        message=message, configuration=MessageSendConfiguration(accepted_output_modes=['text/plain'], **configuration)
    )


def text(artifact):
    return ''.join(get_text_parts(artifact.parts))


def result(response):
    """What there is in a response that is no error, and answers its request."""
    assert not isinstance(response.root, JSONRPCErrorResponse), response
    return response.root.result


def refused(code, response):
    assert isinstance(response.root, JSONRPCErrorResponse), response
    equal((response.root.error.code, response.root.error.data), (code, None))
    assert response.root.error.message, response


class Tests:
    def __init__(self, card, client, other):
        self._card, self._client, self._other = card, client, other

    async def _response(self, *args, client=None, **kwargs):
        request = SendMessageRequest(id=str(uuid4()), params=params(*args, **kwargs))
        return await (client or self._client).send_message(request)

    async def _send(self, *args, **kwargs):
        return result(await self._response(*args, **kwargs))

    def _stream(self, *args, **kwargs):
        request = SendStreamingMessageRequest(id=str(uuid4()), params=params(*args, **kwargs))
        return self._client.send_message_streaming(request)

    async def _get(self, id, **kwargs):
        return await self._client.get_task(GetTaskRequest(id='get', params=TaskQueryParams(id=id, **kwargs)))

    async def _cancel(self, id):
        return await self._client.cancel_task(CancelTaskRequest(id='cancel', params=TaskIdParams(id=id)))

    async def _set_webhook(self, config, client=None):
        request = SetTaskPushNotificationConfigRequest(id='set', params=config)
        return await (client or self._client).set_task_callback(request)

    async def _get_webhook(self, query, client=None):
        request = GetTaskPushNotificationConfigRequest(id='get', params=query)
        return await (client or self._client).get_task_callback(request)

    async def card(self):
        equal((self._card.name, self._card.preferred_transport, self._card.url), ('Demo', 'JSONRPC', f'{URL}/rpc'))
        equal((self._card.capabilities.streaming, self._card.capabilities.push_notifications), (True, True))
        equal([it.id for it in self._card.skills], ['echo', 'provoke'])

    async def send(self):
        task = await self._send('hello')
        equal((task.status.state, [text(it) for it in task.artifacts]), (TaskState.completed, ['hello']))
        equal([(it.role, get_message_text(it), it.task_id) for it in task.history], [(Role.user, 'hello', task.id)])

    async def send_text_of_every_script(self):
        equal(text((await self._send(harness.EVERY_SCRIPT)).artifacts[0]), harness.EVERY_SCRIPT)

    async def stream(self):
        task, *events = [result(it) async for it in self._stream('/stream 5 10')]
        parts = [it for it in events if isinstance(it, TaskArtifactUpdateEvent)]
        equal(([text(it.artifact) for it in parts], {it.task_id for it in events}), (chunks(5), {task.id}))
        equal([bool(it.append) for it in parts], [False, True, True, True, True])
        equal([bool(it.last_chunk) for it in parts], [False, False, False, False, True])
        states = [(it.status.state, it.final) for it in events if it not in parts]
        equal((task.kind, states), ('task', [(TaskState.working, False), (TaskState.completed, True)]))

    async def message_only(self):
        answer = await self._send('/message hi')
        equal((answer.role, get_message_text(answer)), (Role.agent, 'hi'))
        (event,) = [result(it) async for it in self._stream('/message hi')]
        equal(get_message_text(event), 'hi')

    async def get(self):
        asked = await self._send('/ask What?')
        done = await self._send('That.', task=asked)
        task = result(await self._get(done.id))
        equal((task, [get_message_text(it) for it in task.history]), (done, ['/ask What?', 'What?', 'That.']))
        equal([get_message_text(it) for it in result(await self._get(done.id, history_length=1)).history], ['That.'])

    async def cancel(self):
        task = await self._send('/slow 30', blocking=False)
        assert task.status.state in (TaskState.submitted, TaskState.working), task
        equal(result(await self._cancel(task.id)).status.state, TaskState.canceled)
        refused(NOT_CANCELABLE, await self._cancel(task.id))

    async def input_required(self):
        asked = await self._send('/ask What?')
        equal((asked.status.state, get_message_text(asked.status.message)), (TaskState.input_required, 'What?'))
        done = await self._send('That.', task=asked)
        equal((done.id, done.status.state, text(done.artifacts[0])), (asked.id, TaskState.completed, 'That.'))

    async def input_required_in_streams(self):
        *_, last = [result(it) async for it in self._stream('/ask What?')]
        equal((last.status.state, last.final), (TaskState.input_required, True))
        task = Task(id=last.task_id, context_id=last.context_id, status=last.status)
        first, *_, last = [result(it) async for it in self._stream('That.', task=task)]
        equal((first.id, last.status.state, last.final), (task.id, TaskState.completed, True))

    async def a_cut_stream_leaves_its_task(self):
        stream = self._stream('/stream 5 20')
        task = result(await anext(stream))
        await stream.aclose()
        # It has no way to subscribe again.
        while (task := result(await self._get(task.id))).status.state == TaskState.working:
            pass
        equal((task.status.state, text(task.artifacts[0])), (TaskState.completed, ''.join(chunks(5))))

    async def push_configurations(self):
        task = await self._send('/ask What?')
        auth = PushNotificationAuthenticationInfo(schemes=['Bearer'], credentials='secret')
        config = TaskPushNotificationConfig(
            task_id=task.id, push_notification_config=WEBHOOK.model_copy(update={'authentication': auth})
        )
        # Secrets are not returned.
        auth = PushNotificationAuthenticationInfo(schemes=['Bearer'])
        webhook = WEBHOOK.model_copy(update={'authentication': auth, 'token': None})
        saved = config.model_copy(update={'push_notification_config': webhook})
        equal(result(await self._set_webhook(config)), saved)
        by_id = GetTaskPushNotificationConfigParams(id=task.id, push_notification_config_id='p')
        for query in [by_id, TaskIdParams(id=task.id)]:
            equal(result(await self._get_webhook(query)), saved)

    async def push_configuration_of_a_send(self):
        task = await self._send('/ask What?', push_notification_config=WEBHOOK)
        webhook = result(await self._get_webhook(TaskIdParams(id=task.id))).push_notification_config
        equal(webhook, WEBHOOK.model_copy(update={'token': None}))

    async def push_not_supported(self):
        config = TaskPushNotificationConfig(task_id='t', push_notification_config=WEBHOOK)
        refused(NO_PUSH, await self._set_webhook(config, self._other))
        refused(NO_PUSH, await self._get_webhook(TaskIdParams(id='t'), self._other))

    async def parts_of_the_agent(self):
        words, raw, url, data = [it.root for it in (await self._send('/parts')).artifacts[0].parts]
        equal((words.text, raw.file.name), ('A text part.', 'raw.txt'))
        equal(raw.file.bytes, b64encode(b'A raw part.\n').decode())
        equal((url.file.uri, url.file.mime_type), ('https://example.com/map.png', 'image/png'))
        equal(data.data, {'a': 'data part', 'numbers': [1, 2.5], 'nothing': None})

    async def parts_of_the_user(self):
        raw = FileWithBytes(bytes=b64encode(bytes(range(256))).decode(), name='all.bin', mime_type='image/x-raw')
        parts = [
            TextPart(text='hello'),
            FilePart(file=raw),
            FilePart(file=FileWithUri(uri='https://example.com/x', mime_type='image/png')),
            DataPart(data={'a': [1, {'b': None}], 'c': 'ä'}, metadata={'k': 'v'}),
        ]
        task = await self._send(*parts)
        equal([it.root for it in result(await self._get(task.id)).history[0].parts], parts)

    async def failure(self):
        task = await self._send('/fail no such city')
        equal((task.status.state, get_message_text(task.status.message)), (TaskState.failed, 'no such city'))
        equal((await self._send('/reject no')).status.state, TaskState.rejected)

    async def unknown_task(self):
        refused(TASK_NOT_FOUND, await self._get('nobody'))
        refused(TASK_NOT_FOUND, await self._cancel('nobody'))
        refused(TASK_NOT_FOUND, await self._response('hello', task_id='nobody'))
        refused(TASK_NOT_FOUND, await anext(self._stream('hello', task_id='nobody')))

    async def message_to_what_has_ended(self):
        task = await self._send('hello')
        refused(INVALID_PARAMS, await self._response('again', task=task))
        refused(INVALID_PARAMS, await anext(self._stream('again', task=task)))

    async def bad_parameters(self):
        refused(INVALID_PARAMS, await self._response())
        refused(INVALID_PARAMS, await anext(self._stream()))

    async def content_type(self):
        image = FilePart(file=FileWithUri(uri='https://example.com/x.png', mime_type='image/png'))
        refused(CONTENT_TYPE, await self._response('hello', image, client=self._other))


async def main():
    async with httpx.AsyncClient(timeout=15) as http:
        # It looks where cards were before 0.3.
        card = await A2ACardResolver(http, URL).get_agent_card()
        other = await A2AClient.get_client_from_agent_card_url(http, OTHER)
        name = f'a2a-sdk {version("a2a-sdk")} JSONRPC'
        await harness.check_all(name, Tests(card, A2AClient(http, card), other))


harness.run(main)
