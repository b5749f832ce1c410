"""The Python SDK of protocol 1.0 against the demo agent, over each binding at 1.0 and 0.3: python sdk.py URL OTHER

The other server takes no push configurations, and refuses media types that its card does not name."""

import sys
from importlib.metadata import version

import grpc
import harness
import httpx
from a2a.client import A2ACardResolver, ClientCallContext, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.client.transports.grpc import GrpcTransport
from a2a.compat.v0_3.jsonrpc_transport import CompatJsonRpcTransport
from a2a.compat.v0_3.rest_transport import CompatRestTransport
from a2a.helpers import new_text_message
from a2a.types import (
    AgentCard,
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    JSON_RPC_ERROR_CODE_MAP,
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    InvalidParamsError,
    MethodNotFoundError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from harness import all_of, chunks, equal

URL, OTHER = sys.argv[1:]
COMPLETED = TaskState.TASK_STATE_COMPLETED
VERSIONS, BINDINGS = ['1.0', '0.3'], ['JSONRPC', 'HTTP+JSON', 'GRPC']


def request(text, task=None, **configuration):
    ids = {'task_id': task.id, 'context_id': task.context_id} if task else {}
    return SendMessageRequest(
        message=new_text_message(text, role=Role.ROLE_USER, **ids),
        configuration=SendMessageConfiguration(**configuration),
    )


def text(artifact):
    return ''.join(part.text for part in artifact.parts)


def without_secrets(config):
    """The configuration as the server returns it."""
    saved = TaskPushNotificationConfig()
    saved.CopyFrom(config)
    saved.ClearField('token')
    if saved.HasField('authentication'):
        saved.authentication.ClearField('credentials')
    return saved


async def refused(kind, awaitable):
    """An error of this very kind, with something to read."""
    error = await harness.error_of(kind, awaitable)
    assert type(error) is kind and error.message, repr(error)


class Tests:
    ENDED = UnsupportedOperationError

    def __init__(self, client, streaming, other, card):
        self._client, self._streaming, self._other, self._card = client, streaming, other, card
        if isinstance(client._transport, GrpcTransport):
            self.version = None  # Here it says its own, whatever it is told.

    async def _send(self, *args, **kwargs):
        return await self._answer(request(*args, **kwargs))

    async def _started(self, text):
        return await self._send(text, return_immediately=True)

    async def _answer(self, request):
        """What the one answer to a message is."""
        (answer,) = await all_of(self._client.send_message(request))
        return getattr(answer, answer.WhichOneof('payload'))

    async def _events(self, text, task=None):
        return await all_of(self._streaming.send_message(request(text, task)))

    async def card(self):
        equal((self._card.name, [it.id for it in self._card.skills]), ('Demo', ['echo', 'provoke']))
        can = self._card.capabilities
        equal((can.streaming, can.push_notifications, can.extended_agent_card), (True, True, False))
        interfaces = [(it.protocol_version, it.protocol_binding) for it in self._card.supported_interfaces]
        equal(interfaces, [(version, binding) for version in VERSIONS for binding in BINDINGS])

    async def send(self):
        task = await self._send('hello')
        equal(task.status.state, COMPLETED)
        equal([text(it) for it in task.artifacts], ['hello'])

    async def send_text_of_every_script(self):
        equal(text((await self._send(harness.EVERY_SCRIPT)).artifacts[0]), harness.EVERY_SCRIPT)

    async def stream(self):
        events = await self._events('/stream 5 10')
        kinds = [it.WhichOneof('payload') for it in events]
        equal(kinds, ['task', 'status_update', *['artifact_update'] * 5, 'status_update'])
        equal(events[1].status_update.status.state, TaskState.TASK_STATE_WORKING)
        parts = [it.artifact_update for it in events[2:-1]]
        equal([it.append for it in parts], [False, True, True, True, True])
        equal([it.last_chunk for it in parts], [False, False, False, False, True])
        equal([text(it.artifact) for it in parts], chunks(5))
        equal(len({it.artifact.artifact_id for it in parts}), 1)
        equal(events[-1].status_update.status.state, COMPLETED)
        task = await self._client.get_task(GetTaskRequest(id=events[0].task.id))
        equal([text(it) for it in task.artifacts], [''.join(chunks(5))])

    async def get_task(self):
        sent = await self._send('hello')
        task = await self._client.get_task(GetTaskRequest(id=sent.id))
        equal((task.id, task.context_id, task.status.state), (sent.id, sent.context_id, COMPLETED))
        equal([it.role for it in task.history], [Role.ROLE_USER])
        asked = await self._send('/ask What?')
        await self._send('That.', task=asked)
        task = await self._client.get_task(GetTaskRequest(id=asked.id, history_length=1))
        equal([text(it) for it in task.history], ['That.'])

    async def no_history(self):
        sent = await self._send('hello')
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
        task = await self._started('/slow 30')
        canceled = await self._client.cancel_task(CancelTaskRequest(id=task.id))
        equal(canceled.status.state, TaskState.TASK_STATE_CANCELED)
        completed = await self._send('hello')
        await refused(TaskNotCancelableError, self._client.cancel_task(CancelTaskRequest(id=completed.id)))

    async def input_required(self):
        asked = await self._send('/ask What?')
        equal(asked.status.state, TaskState.TASK_STATE_INPUT_REQUIRED)
        equal(text(asked.status.message), 'What?')
        done = await self._send('That.', task=asked)
        equal((done.id, done.status.state, text(done.artifacts[0])), (asked.id, COMPLETED, 'That.'))

    async def follow_up_without_waiting(self):
        asked = await self._send('/ask What?')
        sent = await self._send('That.', task=asked, return_immediately=True)
        now = await self._client.get_task(GetTaskRequest(id=asked.id))
        answered = (TaskState.TASK_STATE_WORKING, COMPLETED)
        assert sent.status.state in answered and now.status.state in answered, (sent.status, now.status)

    async def first_update_right_after_the_reply(self):
        task = await self._started('/stream 20 50')
        now = await self._client.get_task(GetTaskRequest(id=task.id))
        equal(now.status.state, TaskState.TASK_STATE_WORKING)

    async def input_required_in_streams(self):
        asked = await self._events('/ask What?')
        last = asked[-1].task if asked[-1].HasField('task') else asked[-1].status_update
        equal(last.status.state, TaskState.TASK_STATE_INPUT_REQUIRED)
        task = await self._client.get_task(GetTaskRequest(id=asked[0].task.id))
        done = await self._events('That.', task)
        equal(done[0].task.id, task.id)
        equal(done[-1].status_update.status.state, COMPLETED)

    async def subscribe(self):
        task = await self._started('/stream 20 50')
        events = await all_of(self._streaming.subscribe(SubscribeToTaskRequest(id=task.id)))
        equal(events[0].task.id, task.id)
        # What the task had when the subscription began, and what came then, are the whole.
        texts = [text(it) for it in events[0].task.artifacts]
        texts += [text(it.artifact_update.artifact) for it in events if it.HasField('artifact_update')]
        equal(''.join(texts), ''.join(chunks(20)))
        equal(events[-1].status_update.status.state, COMPLETED)

    async def subscribe_after_leaving(self):
        stream = self._streaming.send_message(request('/stream 20 50'))
        task = (await anext(stream)).task
        await stream.aclose()
        events = await all_of(self._streaming.subscribe(SubscribeToTaskRequest(id=task.id)))
        equal(events[-1].status_update.status.state, COMPLETED)

    async def unknown_task(self):
        await refused(TaskNotFoundError, self._client.get_task(GetTaskRequest(id='nobody')))
        await refused(TaskNotFoundError, self._client.cancel_task(CancelTaskRequest(id='nobody')))
        subscription = self._streaming.subscribe(SubscribeToTaskRequest(id='nobody'))
        await self._refused_stream(TaskNotFoundError, subscription)
        unknown = request('hello')
        unknown.message.task_id = 'nobody'
        await refused(TaskNotFoundError, anext(self._client.send_message(unknown)))
        await self._refused_stream(TaskNotFoundError, self._streaming.send_message(unknown))

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

    async def parts_of_the_user(self):
        sent = request('hello')
        data = ParseDict({'a': [1, {'b': None}], 'c': 'ä'}, Value())
        sent.message.parts.extend([
            Part(raw=bytes(range(256)), filename='all.bin', media_type='application/octet-stream'),
            Part(url='https://example.com/x', media_type='image/png'),
            Part(data=data, metadata={'k': 'v'}),
        ])
        parts = list(sent.message.parts)
        task = await self._client.get_task(GetTaskRequest(id=(await self._answer(sent)).id))
        equal(list(task.history[0].parts), parts)

    async def push_configurations(self):
        task = await self._send('/ask What?')
        config = TaskPushNotificationConfig(
            task_id=task.id,
            id='p',
            url='https://hook.invalid/',
            token='t',
            authentication=AuthenticationInfo(scheme='Bearer', credentials='secret'),
        )
        saved = without_secrets(config)
        equal(await self._client.create_task_push_notification_config(config), saved)
        get = GetTaskPushNotificationConfigRequest(task_id=task.id, id='p')
        equal(await self._client.get_task_push_notification_config(get), saved)
        await self._list_and_delete(saved)

    async def _refused_stream(self, kind, stream):
        await refused(kind, anext(stream))

    async def _list_and_delete(self, config):
        list_all = ListTaskPushNotificationConfigsRequest(task_id=config.task_id)
        equal(list((await self._client.list_task_push_notification_configs(list_all)).configs), [config])
        delete = DeleteTaskPushNotificationConfigRequest(task_id=config.task_id, id='p')
        await self._client.delete_task_push_notification_config(delete)
        equal(list((await self._client.list_task_push_notification_configs(list_all)).configs), [])
        get = GetTaskPushNotificationConfigRequest(task_id=config.task_id, id='p')
        await refused(TaskNotFoundError, self._client.get_task_push_notification_config(get))

    async def push_configuration_of_a_send(self):
        config = TaskPushNotificationConfig(id='p', url='https://hook.invalid/', token='t')
        task = await self._send('/ask What?', task_push_notification_config=config)
        get = GetTaskPushNotificationConfigRequest(task_id=task.id, id='p')
        config.task_id = task.id
        equal(await self._client.get_task_push_notification_config(get), without_secrets(config))

    async def push_not_supported(self):
        config = TaskPushNotificationConfig(task_id='t', id='p', url='https://hook.invalid/')
        await refused(PushNotificationNotSupportedError, self._other.create_task_push_notification_config(config))
        get = GetTaskPushNotificationConfigRequest(task_id='t', id='p')
        await refused(PushNotificationNotSupportedError, self._other.get_task_push_notification_config(get))

    async def message_to_what_has_ended(self):
        task = await self._send('hello')
        await refused(self.ENDED, self._send('again', task))
        await self._refused_stream(self.ENDED, self._streaming.send_message(request('again', task)))

    async def subscribe_to_what_has_ended(self):
        task = await self._send('hello')
        subscription = self._streaming.subscribe(SubscribeToTaskRequest(id=task.id))
        await refused(UnsupportedOperationError, anext(subscription))

    async def bad_parameters(self):
        nothing = request('hello')
        del nothing.message.parts[:]
        await refused(InvalidParamsError, anext(self._client.send_message(nothing)))
        other = request('hello', await self._send('/ask What?'))
        other.message.context_id = 'another'
        await refused(InvalidParamsError, anext(self._client.send_message(other)))
        await refused(InvalidParamsError, self._client.get_task(GetTaskRequest(id='t', history_length=-1)))

    async def bad_page(self):
        await refused(InvalidParamsError, self._client.list_tasks(ListTasksRequest(page_size=1000)))

    async def content_type(self):
        image = request('hello')
        image.message.parts.add(url='https://example.com/x.png', media_type='image/png')
        await refused(ContentTypeNotSupportedError, anext(self._other.send_message(image)))

    async def version(self):
        context = ClientCallContext(service_parameters={'A2A-Version': '9.9'})
        await refused(VersionNotSupportedError, self._client.get_task(GetTaskRequest(id='t'), context=context))

    async def extended_card(self):
        # The client does not ask where the card has none, so it is made to.
        self._other._card.capabilities.extended_agent_card = True
        card = self._other.get_extended_agent_card(GetExtendedAgentCardRequest())
        if self._no_extended_card() is None:
            equal((await card).name, 'Demo')
        else:
            await refused(self._no_extended_card(), card)


    def _no_extended_card(self):
        return UnsupportedOperationError


class TestsOf03(Tests):
    """What the SDK finds otherwise where it is given an interface of 0.3."""

    ENDED = InvalidParamsError
    # 0.3 has no such requests, no length of a history that is none, and no versions.
    list_tasks = bad_page = no_history = version = None

    def _is_over(self, kind):
        return isinstance(self._client._transport, kind)

    async def _refused_stream(self, kind, stream):
        if not self._is_over(CompatJsonRpcTransport):
            return await super()._refused_stream(kind, stream)
        # It does not look into an event that is called `error`.
        error = await harness.error_of(A2AClientError, anext(stream))
        assert f'"code":{JSON_RPC_ERROR_CODE_MAP[kind]}' in error.message, error

    def _no_extended_card(self):
        # It knows 0.3's number of this, and not its name. Over gRPC, 0.3 has one call for both cards.
        if self._is_over(CompatJsonRpcTransport):
            return ExtendedAgentCardNotConfiguredError
        return MethodNotFoundError if self._is_over(CompatRestTransport) else None

    async def _started(self, text):
        if not self._is_over(CompatRestTransport):
            return await super()._started(text)
        # Its ProtoJSON leaves out a `blocking` that is false, and a send that does not say it waits.
        stream = self._streaming.send_message(request(text))
        task = (await anext(stream)).task
        await stream.aclose()
        return task

    async def _list_and_delete(self, config):
        # These it does not have over HTTP+JSON.
        if not self._is_over(CompatRestTransport):
            await super()._list_and_delete(config)

    async def subscribe_to_what_has_ended(self):
        task = await self._send('hello')
        first, *_ = await all_of(self._streaming.subscribe(SubscribeToTaskRequest(id=task.id)))
        equal((first.task.id, first.task.status.state), (task.id, COMPLETED))


async def main():
    async with httpx.AsyncClient(timeout=15) as http:
        cards = [await A2ACardResolver(http, url).get_agent_card() for url in (URL, OTHER)]
    for protocol, tests in zip(VERSIONS, [Tests, TestsOf03], strict=True):
        for binding in BINDINGS:

            def connect(card, **config):
                """A client that finds this version alone on the card."""
                only = AgentCard.FromString(card.SerializeToString())
                del only.supported_interfaces[:]
                only.supported_interfaces.extend(
                    it for it in card.supported_interfaces if it.protocol_version == protocol
                )
                return ClientFactory(
                    ClientConfig(
                        supported_protocol_bindings=[binding], grpc_channel_factory=grpc.aio.insecure_channel, **config
                    )
                ).create(only)

            async with (
                connect(cards[0], streaming=False) as client,
                connect(cards[0]) as streaming,
                connect(cards[1], streaming=False) as other,
            ):
                name = f'a2a-sdk {version("a2a-sdk")} at {protocol} {binding}'
                await harness.check_all(name, tests(client, streaming, other, cards[0]))


harness.run(main)
