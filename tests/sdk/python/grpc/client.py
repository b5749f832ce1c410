"""gRPC clients of protocol 1.0 and 0.3 on code that grpcio-tools generates from proto/: python client.py URL"""

import sys
from urllib.request import Request, urlopen

import grpc
import results
from a2a.v1 import a2a_pb2 as v03
from a2a.v1 import a2a_pb2_grpc as v03_grpc
from google.protobuf import json_format
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from lf.a2a.v1 import a2a_pb2 as v1
from lf.a2a.v1 import a2a_pb2_grpc as v1_grpc
from results import equal

SERVER = sys.argv[1]
TIMEOUT = 20
# The server may join chunks, so an update may have several parts.
CHUNKS = ['chunk 1 of 3\n', 'chunk 2 of 3\n', 'chunk 3 of 3\n']
DATA = {'city': 'Lisbon', 'numbers': [1, 2.5], 'nothing': None}
RAW = b'\x00\x01\xfe\xff'


def agent_card(version):
    """Returns the JSON of the agent card for a protocol version."""
    request = Request(f'{SERVER}/.well-known/agent-card.json', headers={'A2A-Version': version})
    with urlopen(request, timeout=TIMEOUT) as response:
        return response.read()


def rejection(call, request):
    """Returns the status code of a rejected call and the messages in its details by type."""
    try:
        response = call(request, timeout=TIMEOUT)
    except grpc.RpcError as error:
        details = {}
        for detail in rpc_status.from_call(error).details:
            message = getattr(error_details_pb2, detail.TypeName().removeprefix('google.rpc.'))()
            assert detail.Unpack(message), detail
            details[type(message).__name__] = message
        return error.code(), details
    raise AssertionError(f'not rejected: {response}')


def check_not_found(call, request):
    code, details = rejection(call, request)
    equal(code, grpc.StatusCode.NOT_FOUND)
    info = details['ErrorInfo']
    equal((info.reason, info.domain), ('TASK_NOT_FOUND', 'a2a-protocol.org'))


class V1:
    """Client of protocol 1.0."""

    NAME = 'gRPC 1.0'

    def __init__(self):
        self._card = json_format.Parse(agent_card('1.0'), v1.AgentCard())
        interfaces = self._card.supported_interfaces
        address = next(i.url for i in interfaces if (i.protocol_binding, i.protocol_version) == ('GRPC', '1.0'))
        self._stub = v1_grpc.A2AServiceStub(grpc.insecure_channel(address))

    def _request(self, *parts, **configuration):
        message = v1.Message(message_id='m', role=v1.ROLE_USER, parts=parts)
        return v1.SendMessageRequest(message=message, configuration=v1.SendMessageConfiguration(**configuration))

    def _send(self, *parts, **configuration):
        return self._stub.SendMessage(self._request(*parts, **configuration), timeout=TIMEOUT).task

    def card(self):
        equal((self._card.name, self._card.capabilities.streaming), ('Demo', True))
        equal([skill.id for skill in self._card.skills], ['echo', 'provoke'])

    def extended_card_is_rejected(self):
        code, details = rejection(self._stub.GetExtendedAgentCard, v1.GetExtendedAgentCardRequest())
        equal((code, details['ErrorInfo'].reason), (grpc.StatusCode.FAILED_PRECONDITION, 'UNSUPPORTED_OPERATION'))

    def send(self):
        task = self._send(v1.Part(text='hello'))
        equal(task.status.state, v1.TASK_STATE_COMPLETED)
        equal(task.artifacts[0].parts[0].text, 'hello')

    def send_with_message_as_reply(self):
        response = self._stub.SendMessage(self._request(v1.Part(text='/message hi')), timeout=TIMEOUT)
        equal(response.WhichOneof('payload'), 'message')
        equal((response.message.role, response.message.parts[0].text), (v1.ROLE_AGENT, 'hi'))

    def stream(self):
        request = self._request(v1.Part(text='/stream 3 1'))
        events = list(self._stub.SendStreamingMessage(request, timeout=TIMEOUT))
        equal(events[0].WhichOneof('payload'), 'task')
        updates = [event.artifact_update for event in events if event.HasField('artifact_update')]
        equal([part.text for update in updates for part in update.artifact.parts], CHUNKS)
        equal([update.last_chunk for update in updates].index(True), len(updates) - 1)
        equal(events[-1].status_update.status.state, v1.TASK_STATE_COMPLETED)

    def get(self):
        sent = self._send(v1.Part(text='hello'))
        task = self._stub.GetTask(v1.GetTaskRequest(id=sent.id, history_length=1), timeout=TIMEOUT)
        equal((task.id, task.context_id, task.status), (sent.id, sent.context_id, sent.status))
        assert task.status.timestamp.seconds > 0, task
        equal([message.parts[0].text for message in task.history], ['hello'])
        without_history = self._stub.GetTask(v1.GetTaskRequest(id=sent.id, history_length=0), timeout=TIMEOUT)
        equal(len(without_history.history), 0)

    def list(self):
        first = self._send(v1.Part(text='first'))
        request = self._request(v1.Part(text='second'))
        request.message.context_id = first.context_id
        second = self._stub.SendMessage(request, timeout=TIMEOUT).task
        page = v1.ListTasksRequest(context_id=first.context_id, page_size=1, status=v1.TASK_STATE_COMPLETED)
        tasks = []
        for _ in range(2):
            response = self._stub.ListTasks(page, timeout=TIMEOUT)
            equal((response.page_size, response.total_size), (1, 2))
            tasks += response.tasks
            page.page_token = response.next_page_token
        equal(page.page_token, '')
        equal([task.id for task in tasks], [second.id, first.id])

    def cancel(self):
        task = self._send(v1.Part(text='/slow 60'), return_immediately=True)
        assert task.status.state in (v1.TASK_STATE_SUBMITTED, v1.TASK_STATE_WORKING), task
        canceled = self._stub.CancelTask(v1.CancelTaskRequest(id=task.id), timeout=TIMEOUT)
        equal((canceled.id, canceled.status.state), (task.id, v1.TASK_STATE_CANCELED))

    def subscribe(self):
        task = self._send(v1.Part(text='/slow 60'), return_immediately=True)
        events = self._stub.SubscribeToTask(v1.SubscribeToTaskRequest(id=task.id), timeout=TIMEOUT)
        equal(next(events).task.id, task.id)
        self._stub.CancelTask(v1.CancelTaskRequest(id=task.id), timeout=TIMEOUT)
        equal(list(events)[-1].status_update.status.state, v1.TASK_STATE_CANCELED)

    def error(self):
        check_not_found(self._stub.GetTask, v1.GetTaskRequest(id='unknown'))

    def error_with_field(self):
        code, details = rejection(self._stub.SendMessage, v1.SendMessageRequest())
        equal(code, grpc.StatusCode.INVALID_ARGUMENT)
        equal([violation.field for violation in details['BadRequest'].field_violations], ['message'])

    def file_part(self):
        sent = v1.Part(raw=RAW, filename='four.bin', media_type='application/octet-stream')
        equal(self._send(v1.Part(text='hello'), sent).history[0].parts[1], sent)
        raw, url = self._send(v1.Part(text='/parts')).artifacts[0].parts[1:3]
        equal((raw.raw, raw.filename, raw.media_type), (b'A raw part.\n', 'raw.txt', 'text/plain'))
        equal((url.url, url.media_type), ('https://example.com/map.png', 'image/png'))

    def data_part(self):
        sent = json_format.ParseDict({'data': DATA}, v1.Part())
        equal(self._send(v1.Part(text='hello'), sent).history[0].parts[1], sent)
        received = self._send(v1.Part(text='/parts')).artifacts[0].parts[3].data
        equal(json_format.MessageToDict(received), {'a': 'data part', 'numbers': [1, 2.5], 'nothing': None})


class V03:
    """Client of protocol 0.3, which has no method that lists tasks."""

    NAME = 'gRPC 0.3'

    def __init__(self):
        # The card of 0.3 has members that the proto file does not have.
        self._card = json_format.Parse(agent_card('0.3'), v03.AgentCard(), ignore_unknown_fields=True)
        address = next(i.url for i in self._card.additional_interfaces if i.transport == 'GRPC')
        self._stub = v03_grpc.A2AServiceStub(grpc.insecure_channel(address))

    def _request(self, *parts, **configuration):
        message = v03.Message(message_id='m', role=v03.ROLE_USER, content=parts)
        return v03.SendMessageRequest(request=message, configuration=v03.SendMessageConfiguration(**configuration))

    def _send(self, *parts, blocking=True):
        return self._stub.SendMessage(self._request(*parts, blocking=blocking), timeout=TIMEOUT).task

    def card(self):
        card = self._card
        equal((card.name, card.protocol_version, card.capabilities.streaming), ('Demo', '0.3.0', True))
        equal([skill.id for skill in card.skills], ['echo', 'provoke'])

    def public_card_is_returned(self):
        card = self._stub.GetAgentCard(v03.GetAgentCardRequest(), timeout=TIMEOUT)
        equal((card.name, card.protocol_version), ('Demo', '0.3.0'))
        equal(card.supports_authenticated_extended_card, False)

    def send(self):
        task = self._send(v03.Part(text='hello'))
        equal(task.status.state, v03.TASK_STATE_COMPLETED)
        equal(task.artifacts[0].parts[0].text, 'hello')

    def send_with_message_as_reply(self):
        request = self._request(v03.Part(text='/message hi'), blocking=True)
        response = self._stub.SendMessage(request, timeout=TIMEOUT)
        equal(response.WhichOneof('payload'), 'msg')
        equal((response.msg.role, response.msg.content[0].text), (v03.ROLE_AGENT, 'hi'))

    def stream(self):
        request = self._request(v03.Part(text='/stream 3 1'))
        events = list(self._stub.SendStreamingMessage(request, timeout=TIMEOUT))
        equal(events[0].WhichOneof('payload'), 'task')
        updates = [event.artifact_update for event in events if event.HasField('artifact_update')]
        equal([part.text for update in updates for part in update.artifact.parts], CHUNKS)
        equal([update.last_chunk for update in updates].index(True), len(updates) - 1)
        update = events[-1].status_update
        equal((update.status.state, update.final), (v03.TASK_STATE_COMPLETED, True))

    def get(self):
        sent = self._send(v03.Part(text='hello'))
        request = v03.GetTaskRequest(name=f'tasks/{sent.id}', history_length=1)
        task = self._stub.GetTask(request, timeout=TIMEOUT)
        equal((task.id, task.context_id, task.status), (sent.id, sent.context_id, sent.status))
        equal([message.content[0].text for message in task.history], ['hello'])

    def cancel(self):
        task = self._send(v03.Part(text='/slow 60'), blocking=False)
        assert task.status.state in (v03.TASK_STATE_SUBMITTED, v03.TASK_STATE_WORKING), task
        canceled = self._stub.CancelTask(v03.CancelTaskRequest(name=f'tasks/{task.id}'), timeout=TIMEOUT)
        equal((canceled.id, canceled.status.state), (task.id, v03.TASK_STATE_CANCELLED))

    def subscribe(self):
        task = self._send(v03.Part(text='/slow 60'), blocking=False)
        events = self._stub.TaskSubscription(v03.TaskSubscriptionRequest(name=f'tasks/{task.id}'), timeout=TIMEOUT)
        equal(next(events).task.id, task.id)
        self._stub.CancelTask(v03.CancelTaskRequest(name=f'tasks/{task.id}'), timeout=TIMEOUT)
        equal(list(events)[-1].status_update.status.state, v03.TASK_STATE_CANCELLED)

    def error(self):
        check_not_found(self._stub.GetTask, v03.GetTaskRequest(name='tasks/unknown'))

    def file_part(self):
        file = v03.FilePart(file_with_bytes=RAW, mime_type='application/octet-stream', name='four.bin')
        sent = v03.Part(file=file)
        equal(self._send(v03.Part(text='hello'), sent).history[0].content[1], sent)
        raw, url = [part.file for part in self._send(v03.Part(text='/parts')).artifacts[0].parts[1:3]]
        equal((raw.file_with_bytes, raw.name, raw.mime_type), (b'A raw part.\n', 'raw.txt', 'text/plain'))
        equal((url.file_with_uri, url.mime_type), ('https://example.com/map.png', 'image/png'))

    def data_part(self):
        sent = json_format.ParseDict({'data': {'data': DATA}}, v03.Part())
        equal(self._send(v03.Part(text='hello'), sent).history[0].content[1], sent)
        received = self._send(v03.Part(text='/parts')).artifacts[0].parts[3].data.data
        equal(json_format.MessageToDict(received), {'a': 'data part', 'numbers': [1, 2.5], 'nothing': None})


results.run(V1(), V03())
