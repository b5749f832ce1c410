"""The Python SDK of protocol 0.3 against the demo agent, over each transport: python sdk03.py URL OTHER

The other server takes no push configurations, and refuses media types that its card does not name."""

import sys
from base64 import b64encode
from importlib.metadata import version
from uuid import uuid4

import grpc
import harness
import httpx
from a2a.client import A2ACardResolver, A2AClientHTTPError, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientJSONRPCError
from a2a.client.transports.jsonrpc import JsonRpcTransport
from a2a.client.transports.rest import RestTransport
from a2a.types import (
    DataPart,
    FilePart,
    FileWithBytes,
    FileWithUri,
    GetTaskPushNotificationConfigParams,
    Message,
    MessageSendConfiguration,
    Part,
    PushNotificationAuthenticationInfo,
    PushNotificationConfig,
    Role,
    TaskArtifactUpdateEvent,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TaskState,
    TextPart,
    TransportProtocol,
)
from a2a.utils import get_message_text, get_text_parts
from harness import all_of, chunks, equal

URL, OTHER = sys.argv[1:]

# What each error is over JSON-RPC, HTTP+JSON and gRPC.
CODE = grpc.StatusCode
ERRORS = {
    'TaskNotFoundError': (-32001, 404, CODE.NOT_FOUND),
    'TaskNotCancelableError': (-32002, 409, CODE.FAILED_PRECONDITION),
    'PushNotificationNotSupportedError': (-32003, 400, CODE.UNIMPLEMENTED),
    'ContentTypeNotSupportedError': (-32005, 415, CODE.INVALID_ARGUMENT),
    'AuthenticatedExtendedCardNotConfiguredError': (-32007, 404, CODE.UNIMPLEMENTED),
    'InvalidParamsError': (-32602, 400, CODE.INVALID_ARGUMENT),
}


def message(*parts, task=None, **ids):
    parts = [Part(TextPart(text=it) if isinstance(it, str) else it) for it in parts]
    if task:
        ids = {'task_id': task.id, 'context_id': task.context_id}
    return Message(message_id=str(uuid4()), role=Role.user, parts=parts, **ids)


def text(artifact):
    return ''.join(get_text_parts(artifact.parts))


async def refused(name, awaitable):
    error = await harness.error_of((A2AClientJSONRPCError, A2AClientHTTPError, grpc.aio.AioRpcError), awaitable)
    rpc, http, code = ERRORS[name]
    match error:
        case A2AClientJSONRPCError():
            equal((error.error.code, error.error.data), (rpc, None))
            assert error.error.message, error
        case A2AClientHTTPError():
            equal(error.status_code, http)
        case _:
            equal(error.code(), code)
            assert error.details().startswith(f'{name}: '), error.details()


WEBHOOK = PushNotificationConfig(id='p', url='https://hook.invalid/', token='t')


def members(config):
    """The members of a configuration, which has no secrets when the server returns it."""
    webhook = config.push_notification_config
    assert not webhook.token and not webhook.authentication.credentials, config
    return config.task_id, webhook.id, webhook.url, webhook.authentication.schemes


class Tests:
    def __init__(self, client, streaming, notified, other):
        self._client, self._streaming, self._notified, self._other = client, streaming, notified, other

    async def _answer(self, message, client=None, **configuration):
        """What the one answer to a message is."""
        configuration = MessageSendConfiguration(**configuration) if configuration else None
        (answer,) = await all_of((client or self._client).send_message(message, configuration=configuration))
        return answer if isinstance(answer, Message) else answer[0]

    async def _send(self, text, task=None, **configuration):
        return await self._answer(message(text, task=task), **configuration)

    async def _started(self, text):
        # Over HTTP+JSON its ProtoJSON leaves out what is false, and a configuration without `blocking` does not wait.
        return await self._send(text, blocking=False)

    async def card(self):
        card = await self._client.get_card()
        equal((card.name, card.protocol_version, card.preferred_transport), ('Demo', '0.3.0', 'JSONRPC'))
        equal((card.capabilities.streaming, card.capabilities.push_notifications), (True, True))
        equal([it.id for it in card.skills], ['echo', 'provoke'])
        equal({it.transport for it in card.additional_interfaces}, {'JSONRPC', 'HTTP+JSON', 'GRPC'})

    async def send(self):
        sent = message('hello')
        task = await self._answer(sent)
        equal((task.status.state, [text(it) for it in task.artifacts]), (TaskState.completed, ['hello']))
        equal([(it.message_id, it.role, it.task_id) for it in task.history], [(sent.message_id, Role.user, task.id)])

    async def send_text_of_every_script(self):
        equal(text((await self._send(harness.EVERY_SCRIPT)).artifacts[0]), harness.EVERY_SCRIPT)

    async def send_without_waiting(self):
        task = await self._started('/slow 30')
        assert task.status.state in (TaskState.submitted, TaskState.working), task
        equal((await self._client.cancel_task(TaskIdParams(id=task.id))).status.state, TaskState.canceled)

    async def stream(self):
        stream = self._streaming.send_message(message('/stream 5 10'))
        task, none = await anext(stream)
        equal((none, task.status.state in (TaskState.submitted, TaskState.working)), (None, True))
        texts, events = [], []
        async for event in stream:
            events.append(event)
            # As it is now, since the client makes the task of these very parts.
            texts += [text(it.artifact) for it in event if isinstance(it, TaskArtifactUpdateEvent)]
        updates = [it for _, it in events]
        parts = [it for it in updates if isinstance(it, TaskArtifactUpdateEvent)]
        equal(texts, chunks(5))
        equal([bool(it.append) for it in parts], [False, True, True, True, True])
        equal([bool(it.last_chunk) for it in parts], [False, False, False, False, True])
        equal([it.final for it in updates if it not in parts], [False, True])
        equal(updates[-1].status.state, TaskState.completed)
        # The client puts the task together of what it was told; the server must have the same one.
        whole = await self._client.get_task(TaskQueryParams(id=task.id))
        for task in [whole, events[-1][0]]:
            equal([text(it) for it in task.artifacts], [''.join(chunks(5))])

    async def stream_of_a_message(self):
        (event,) = await all_of(self._streaming.send_message(message('/message hi')))
        equal((event.role, get_message_text(event)), (Role.agent, 'hi'))

    async def message_only(self):
        answer = await self._send('/message hi')
        equal((answer.role, get_message_text(answer), answer.task_id), (Role.agent, 'hi', None))

    async def get(self):
        sent = await self._send('hello')
        task = await self._client.get_task(TaskQueryParams(id=sent.id))
        equal((task.id, task.context_id, task.status.state), (sent.id, sent.context_id, TaskState.completed))
        asked = await self._send('/ask What?')
        await self._send('That.', asked)
        newest = (await self._client.get_task(TaskQueryParams(id=asked.id, history_length=1))).history
        equal([get_message_text(it) for it in newest], ['That.'])

    async def cancel(self):
        task = await self._started('/slow 30')
        equal((await self._client.cancel_task(TaskIdParams(id=task.id))).status.state, TaskState.canceled)
        await refused('TaskNotCancelableError', self._client.cancel_task(TaskIdParams(id=task.id)))
        completed = await self._send('hello')
        await refused('TaskNotCancelableError', self._client.cancel_task(TaskIdParams(id=completed.id)))

    async def input_required(self):
        asked = await self._send('/ask What?')
        equal((asked.status.state, get_message_text(asked.status.message)), (TaskState.input_required, 'What?'))
        done = await self._send('That.', asked)
        equal((done.id, done.status.state, text(done.artifacts[0])), (asked.id, TaskState.completed, 'That.'))
        equal([get_message_text(it) for it in done.history], ['/ask What?', 'What?', 'That.'])

    async def follow_up_without_waiting(self):
        asked = await self._send('/ask What?')
        done = await self._answer(message('That.', task=asked), blocking=False)
        now = await self._client.get_task(TaskQueryParams(id=asked.id))
        answered = (TaskState.working, TaskState.completed)
        assert done.status.state in answered and now.status.state in answered, (done.status, now.status)

    async def first_update_right_after_the_reply(self):
        task = await self._started('/stream 20 50')
        equal((await self._client.get_task(TaskQueryParams(id=task.id))).status.state, TaskState.working)

    async def input_required_in_streams(self):
        asked = await all_of(self._streaming.send_message(message('/ask What?')))
        task, last = asked[-1]
        equal((task.status.state, last is None or last.final), (TaskState.input_required, True))
        done = await all_of(self._streaming.send_message(message('That.', task=task)))
        equal((done[0][0].id, done[-1][0].status.state, done[-1][1].final), (task.id, TaskState.completed, True))

    async def resubscribe_after_a_cut(self):
        stream = self._streaming.send_message(message('/stream 20 50'))
        task, _ = await anext(stream)
        await stream.aclose()
        events = await all_of(self._streaming.resubscribe(TaskIdParams(id=task.id)))
        parts = [it.artifact for _, it in events if isinstance(it, TaskArtifactUpdateEvent)]
        assert chunks(20)[-len(parts) :] == [text(it) for it in parts] != [], events
        last, update = events[-1]
        equal((last.id, last.status.state, update.final), (task.id, TaskState.completed, True))

    async def resubscribe_to_what_has_ended(self):
        task = await self._send('hello')
        events = await all_of(self._streaming.resubscribe(TaskIdParams(id=task.id)))
        equal({it.id for it, _ in events} | {it.status.state for it, _ in events}, {task.id, TaskState.completed})

    async def push_configurations(self):
        task = await self._started('/slow 30')
        auth = PushNotificationAuthenticationInfo(schemes=['Bearer'], credentials='secret')
        config = WEBHOOK.model_copy(update={'authentication': auth})
        config = TaskPushNotificationConfig(task_id=task.id, push_notification_config=config)
        equal(members(await self._client.set_task_callback(config)), (task.id, 'p', WEBHOOK.url, ['Bearer']))
        query = GetTaskPushNotificationConfigParams(id=task.id, push_notification_config_id='p')
        equal(members(await self._client.get_task_callback(query)), (task.id, 'p', WEBHOOK.url, ['Bearer']))
        unknown = GetTaskPushNotificationConfigParams(id=task.id, push_notification_config_id='q')
        await refused('TaskNotFoundError', self._client.get_task_callback(unknown))
        await self._client.cancel_task(TaskIdParams(id=task.id))

    async def push_configuration_of_a_send(self):
        task = await self._answer(message('/ask What?'), self._notified)
        query = GetTaskPushNotificationConfigParams(id=task.id, push_notification_config_id='p')
        kept = (await self._client.get_task_callback(query)).push_notification_config
        equal((kept.id, kept.url, kept.token or None), (WEBHOOK.id, WEBHOOK.url, None))

    async def push_not_supported(self):
        config = TaskPushNotificationConfig(task_id='t', push_notification_config=WEBHOOK)
        await refused('PushNotificationNotSupportedError', self._other.set_task_callback(config))
        query = GetTaskPushNotificationConfigParams(id='t', push_notification_config_id='p')
        await refused('PushNotificationNotSupportedError', self._other.get_task_callback(query))

    async def parts_of_the_agent(self):
        words, raw, url, data = [it.root for it in (await self._send('/parts')).artifacts[0].parts]
        equal(words.text, 'A text part.')
        equal((raw.file.bytes, raw.file.name), (b64encode(b'A raw part.\n').decode(), 'raw.txt'))
        equal((url.file.uri, url.file.mime_type), ('https://example.com/map.png', 'image/png'))
        equal(data.data, {'a': 'data part', 'numbers': [1, 2.5], 'nothing': None})

    async def parts_of_the_user(self):
        raw = FileWithBytes(bytes=b64encode(bytes(range(256))).decode(), name='all.bin', mime_type='image/x-raw')
        url = FileWithUri(uri='https://example.com/x', mime_type='image/png')
        data = {'a': [1, {'b': None}], 'c': 'ä'}
        sent = message('hello', FilePart(file=raw), FilePart(file=url), DataPart(data=data, metadata={'k': 'v'}))
        task = await self._answer(sent)
        (kept,) = (await self._client.get_task(TaskQueryParams(id=task.id))).history
        words, file, link, object = [it.root for it in kept.parts]
        equal((words.text, file.file.bytes, file.file.mime_type), ('hello', raw.bytes, raw.mime_type))
        equal((link.file.uri, object.data, object.metadata), (url.uri, data, {'k': 'v'}))

    async def failure(self):
        task = await self._send('/fail no such city')
        equal((task.status.state, get_message_text(task.status.message)), (TaskState.failed, 'no such city'))
        equal((await self._send('/reject no')).status.state, TaskState.rejected)

    async def unknown_task(self):
        await refused('TaskNotFoundError', self._client.get_task(TaskQueryParams(id='nobody')))
        await refused('TaskNotFoundError', self._client.cancel_task(TaskIdParams(id='nobody')))
        await refused('TaskNotFoundError', self._answer(message('hello', task_id='nobody')))
        unknown = self._streaming.send_message(message('hello', task_id='nobody'))
        await refused('TaskNotFoundError', anext(unknown))

    async def subscription_to_an_unknown_task(self):
        answer = anext(self._streaming.resubscribe(TaskIdParams(id='nobody')))
        if not isinstance(self._streaming._transport, RestTransport):
            return await refused('TaskNotFoundError', answer)
        # Here this client does not look at the status: all that is no stream is a 400 to it.
        error = await harness.error_of(A2AClientHTTPError, answer)
        equal((error.status_code, 'Invalid SSE response' in error.message), (400, True))

    async def message_to_what_has_ended(self):
        task = await self._send('hello')
        await refused('InvalidParamsError', self._send('again', task))
        await refused('InvalidParamsError', anext(self._streaming.send_message(message('again', task=task))))

    async def bad_parameters(self):
        await refused('InvalidParamsError', self._answer(message()))
        if isinstance(self._streaming._transport, JsonRpcTransport):
            await refused('InvalidParamsError', anext(self._streaming.send_message(message())))
        other = message('hello', task=await self._send('/ask What?'))
        other.context_id = 'another'
        await refused('InvalidParamsError', self._answer(other))

    async def content_type(self):
        image = FilePart(file=FileWithUri(uri='https://example.com/x.png', mime_type='image/png'))
        await refused('ContentTypeNotSupportedError', self._answer(message('hello', image), self._other))

    async def extended_card(self):
        # The client does not ask where the card has none, so it is made to.
        transport = self._other._transport
        transport._needs_extended_card = True
        # Over gRPC, 0.3 has one call for both cards.
        if type(transport).__name__ == 'GrpcTransport':
            equal((await transport.get_card()).name, 'Demo')
        else:
            await refused('AuthenticatedExtendedCardNotConfiguredError', transport.get_card())


async def main():
    for transport in [TransportProtocol.jsonrpc, TransportProtocol.http_json, TransportProtocol.grpc]:

        async def connect(url, **config):
            config = ClientConfig(
                supported_transports=[transport],
                grpc_channel_factory=grpc.aio.insecure_channel,
                httpx_client=httpx.AsyncClient(timeout=15),
                **config,
            )
            return ClientFactory(config).create(await A2ACardResolver(config.httpx_client, url).get_agent_card())

        async with (
            await connect(URL, streaming=False) as client,
            await connect(URL) as streaming,
            await connect(URL, streaming=False, push_notification_configs=[WEBHOOK]) as notified,
            await connect(OTHER, streaming=False) as other,
        ):
            name = f'a2a-sdk {version("a2a-sdk")} {transport.value}'
            await harness.check_all(name, Tests(client, streaming, notified, other))


harness.run(main)
