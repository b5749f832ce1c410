"""HTTP+JSON clients of protocol 1.0 and 0.3 on code that openapi-python-client generates: python client.py URL"""

import base64
import json
import sys
from datetime import timedelta
from http import HTTPStatus

import a2a_v03
import a2a_v1
import httpx
import results
from a2a_v03 import models as v03
from a2a_v03.api.a2a_service import cancel_task as v03_cancel_task
from a2a_v03.api.a2a_service import get_agent_card as v03_get_agent_card
from a2a_v03.api.a2a_service import get_public_agent_card as v03_get_public_agent_card
from a2a_v03.api.a2a_service import get_task as v03_get_task
from a2a_v03.api.a2a_service import send_message as v03_send_message
from a2a_v03.api.a2a_service import send_streaming_message as v03_send_streaming_message
from a2a_v03.api.a2a_service import task_subscription as v03_task_subscription
from a2a_v1 import models as v1
from a2a_v1.api.a2a_service import cancel_task as v1_cancel_task
from a2a_v1.api.a2a_service import get_extended_agent_card as v1_get_extended_agent_card
from a2a_v1.api.a2a_service import get_public_agent_card as v1_get_public_agent_card
from a2a_v1.api.a2a_service import get_task as v1_get_task
from a2a_v1.api.a2a_service import list_tasks as v1_list_tasks
from a2a_v1.api.a2a_service import send_message as v1_send_message
from a2a_v1.api.a2a_service import send_streaming_message as v1_send_streaming_message
from a2a_v1.api.a2a_service import subscribe_to_task as v1_subscribe_to_task
from results import equal

SERVER = sys.argv[1]
TIMEOUT = httpx.Timeout(20)
# The server may join chunks, so an update may have several parts.
CHUNKS = ['chunk 1 of 3\n', 'chunk 2 of 3\n', 'chunk 3 of 3\n']
DATA = {'city': 'Lisbon', 'numbers': [1, 2.5], 'nothing': None}
DATA_OF_DEMO = {'a': 'data part', 'numbers': [1, 2.5], 'nothing': None}
RAW = base64.b64encode(b'\x00\x01\xfe\xff').decode()
RAW_OF_DEMO = base64.b64encode(b'A raw part.\n').decode()


def events(client, request, types):
    """Yields the events of a stream. The generator has no streams: it builds the request and parses the events."""
    with client.get_httpx_client().stream(**request) as response:
        equal((response.status_code, response.headers['content-type']), (200, 'text/event-stream'))
        for line in response.iter_lines():
            if line.startswith('data:'):
                event = json.loads(line.removeprefix('data:'))
                [kind] = event
                yield types[kind].from_dict(event)


def check_error(response, status, reason):
    """Checks an error with its details and returns it."""
    equal(response.status_code, status)
    error = response.parsed.error
    equal(error.code, status)
    equal((error.details[0].reason, error.details[0].domain), (reason, 'a2a-protocol.org'))
    return error


class V1:
    """Client of protocol 1.0."""

    NAME = 'HTTP+JSON 1.0'
    EVENTS = {
        'task': v1.StreamResponseTask,
        'message': v1.StreamResponseMessage,
        'statusUpdate': v1.StreamResponseStatusUpdate,
        'artifactUpdate': v1.StreamResponseArtifactUpdate,
    }

    def __init__(self):
        self._client = a2a_v1.Client(base_url=SERVER, timeout=TIMEOUT, raise_on_unexpected_status=True)

    def _request(self, *parts, **configuration):
        message = v1.Message(message_id='m', role=v1.Role.ROLE_USER, parts=list(parts))
        return v1.SendMessageRequest(message=message, configuration=v1.SendMessageConfiguration(**configuration))

    def _send(self, *parts, **configuration):
        response = v1_send_message.sync(client=self._client, body=self._request(*parts, **configuration))
        assert isinstance(response, v1.SendMessageResponseTask), response
        return response.task

    def card(self):
        card = v1_get_public_agent_card.sync(client=self._client)
        equal((card.name, card.capabilities.streaming), ('Demo', True))
        equal([skill.id for skill in card.skills], ['echo', 'provoke'])
        assert (SERVER, 'HTTP+JSON', '1.0') in [
            (i.url, i.protocol_binding, i.protocol_version) for i in card.supported_interfaces
        ], card

    def extended_card_is_rejected(self):
        response = v1_get_extended_agent_card.sync_detailed(client=self._client)
        check_error(response, HTTPStatus.BAD_REQUEST, 'UNSUPPORTED_OPERATION')

    def send(self):
        task = self._send(v1.PartText(text='hello'))
        equal(task.status.state, v1.TaskState.TASK_STATE_COMPLETED)
        equal(task.artifacts[0].parts[0].text, 'hello')

    def send_with_message_as_reply(self):
        response = v1_send_message.sync(client=self._client, body=self._request(v1.PartText(text='/message hi')))
        assert isinstance(response, v1.SendMessageResponseMessage), response
        equal((response.message.role, response.message.parts[0].text), (v1.Role.ROLE_AGENT, 'hi'))

    def stream(self):
        request = v1_send_streaming_message._get_kwargs(body=self._request(v1.PartText(text='/stream 3 1')))
        received = list(events(self._client, request, self.EVENTS))
        assert isinstance(received[0], v1.StreamResponseTask), received
        updates = [event.artifact_update for event in received if isinstance(event, v1.StreamResponseArtifactUpdate)]
        equal([part.text for update in updates for part in update.artifact.parts], CHUNKS)
        equal([update.last_chunk is True for update in updates].index(True), len(updates) - 1)
        equal(received[-1].status_update.status.state, v1.TaskState.TASK_STATE_COMPLETED)

    def get(self):
        sent = self._send(v1.PartText(text='hello'))
        task = v1_get_task.sync(sent.id, client=self._client, history_length=1)
        equal((task.id, task.context_id, task.status), (sent.id, sent.context_id, sent.status))
        equal(task.status.timestamp.utcoffset(), timedelta(0))
        equal([message.parts[0].text for message in task.history], ['hello'])
        without_history = v1_get_task.sync(sent.id, client=self._client, history_length=0)
        assert not without_history.history, without_history

    def list(self):
        first = self._send(v1.PartText(text='first'))
        request = self._request(v1.PartText(text='second'))
        request.message.context_id = first.context_id
        second = v1_send_message.sync(client=self._client, body=request).task
        ids = []
        page_token = ''
        for _ in range(2):
            response = v1_list_tasks.sync(
                client=self._client,
                context_id=first.context_id,
                page_size=1,
                page_token=page_token,
                status=v1.TaskState.TASK_STATE_COMPLETED,
            )
            equal((response.page_size, response.total_size), (1, 2))
            ids += [task.id for task in response.tasks]
            page_token = response.next_page_token
        equal(page_token, '')
        equal(ids, [second.id, first.id])

    def cancel(self):
        task = self._send(v1.PartText(text='/slow 60'), return_immediately=True)
        assert task.status.state in (v1.TaskState.TASK_STATE_SUBMITTED, v1.TaskState.TASK_STATE_WORKING), task
        canceled = v1_cancel_task.sync(task.id, client=self._client, body=v1.CancelTaskBody())
        equal((canceled.id, canceled.status.state), (task.id, v1.TaskState.TASK_STATE_CANCELED))

    def subscribe(self):
        task = self._send(v1.PartText(text='/slow 60'), return_immediately=True)
        received = events(self._client, v1_subscribe_to_task._get_kwargs(task.id), self.EVENTS)
        equal(next(received).task.id, task.id)
        v1_cancel_task.sync(task.id, client=self._client)
        equal(list(received)[-1].status_update.status.state, v1.TaskState.TASK_STATE_CANCELED)

    def error(self):
        response = v1_get_task.sync_detailed('unknown', client=self._client)
        check_error(response, HTTPStatus.NOT_FOUND, 'TASK_NOT_FOUND')

    def error_with_field(self):
        response = v1_send_message.sync_detailed(client=self._client, body=self._request())
        error = check_error(response, HTTPStatus.BAD_REQUEST, 'INVALID_PARAMS')
        [bad_request] = [detail for detail in error.details if isinstance(detail, v1.BadRequest)]
        equal([violation.field for violation in bad_request.field_violations], ['message.parts'])

    def file_part(self):
        sent = v1.PartRaw(raw=RAW, filename='four.bin', media_type='application/octet-stream')
        equal(self._send(v1.PartText(text='hello'), sent).history[0].parts[1], sent)
        raw, url = self._send(v1.PartText(text='/parts')).artifacts[0].parts[1:3]
        equal(raw, v1.PartRaw(raw=RAW_OF_DEMO, filename='raw.txt', media_type='text/plain'))
        equal((url.url, url.media_type), ('https://example.com/map.png', 'image/png'))

    def data_part(self):
        sent = v1.PartData(data=DATA)
        equal(self._send(v1.PartText(text='hello'), sent).history[0].parts[1], sent)
        equal(self._send(v1.PartText(text='/parts')).artifacts[0].parts[3], v1.PartData(data=DATA_OF_DEMO))


class V03:
    """Client of protocol 0.3."""

    NAME = 'HTTP+JSON 0.3'
    EVENTS = {
        'task': v03.StreamResponseTask,
        'message': v03.StreamResponseMsg,
        'statusUpdate': v03.StreamResponseStatusUpdate,
        'artifactUpdate': v03.StreamResponseArtifactUpdate,
    }

    def __init__(self):
        self._client = a2a_v03.Client(base_url=SERVER, timeout=TIMEOUT, raise_on_unexpected_status=True)

    def _request(self, *parts, blocking=True):
        message = v03.Message(message_id='m', role=v03.Role.ROLE_USER, content=list(parts))
        return v03.SendMessageRequest(message=message, configuration=v03.SendMessageConfiguration(blocking=blocking))

    def _send(self, *parts, blocking=True):
        response = v03_send_message.sync(client=self._client, body=self._request(*parts, blocking=blocking))
        assert isinstance(response, v03.SendMessageResponseTask), response
        return response.task

    def card(self):
        card = v03_get_public_agent_card.sync(client=self._client)
        equal((card.name, card.protocol_version, card.capabilities.streaming), ('Demo', '0.3.0', True))
        equal([skill.id for skill in card.skills], ['echo', 'provoke'])

    def extended_card_is_rejected(self):
        response = v03_get_agent_card.sync_detailed(client=self._client)
        check_error(response, HTTPStatus.NOT_FOUND, 'EXTENDED_AGENT_CARD_NOT_CONFIGURED')

    def send(self):
        task = self._send(v03.PartText(text='hello'))
        equal(task.status.state, v03.TaskState.TASK_STATE_COMPLETED)
        equal(task.artifacts[0].parts[0].text, 'hello')

    def send_with_message_as_reply(self):
        response = v03_send_message.sync(client=self._client, body=self._request(v03.PartText(text='/message hi')))
        assert isinstance(response, v03.SendMessageResponseMsg), response
        equal((response.message.role, response.message.content[0].text), (v03.Role.ROLE_AGENT, 'hi'))

    def stream(self):
        request = v03_send_streaming_message._get_kwargs(body=self._request(v03.PartText(text='/stream 3 1')))
        received = list(events(self._client, request, self.EVENTS))
        assert isinstance(received[0], v03.StreamResponseTask), received
        updates = [event.artifact_update for event in received if isinstance(event, v03.StreamResponseArtifactUpdate)]
        equal([part.text for update in updates for part in update.artifact.parts], CHUNKS)
        equal([update.last_chunk is True for update in updates].index(True), len(updates) - 1)
        update = received[-1].status_update
        equal((update.status.state, update.final), (v03.TaskState.TASK_STATE_COMPLETED, True))

    def get(self):
        sent = self._send(v03.PartText(text='hello'))
        task = v03_get_task.sync(sent.id, client=self._client, history_length=1)
        equal((task.id, task.context_id, task.status), (sent.id, sent.context_id, sent.status))
        equal([message.content[0].text for message in task.history], ['hello'])

    def cancel(self):
        task = self._send(v03.PartText(text='/slow 60'), blocking=False)
        assert task.status.state in (v03.TaskState.TASK_STATE_SUBMITTED, v03.TaskState.TASK_STATE_WORKING), task
        canceled = v03_cancel_task.sync(task.id, client=self._client)
        equal((canceled.id, canceled.status.state), (task.id, v03.TaskState.TASK_STATE_CANCELLED))

    def subscribe(self):
        task = self._send(v03.PartText(text='/slow 60'), blocking=False)
        received = events(self._client, v03_task_subscription._get_kwargs(task.id), self.EVENTS)
        equal(next(received).task.id, task.id)
        v03_cancel_task.sync(task.id, client=self._client)
        equal(list(received)[-1].status_update.status.state, v03.TaskState.TASK_STATE_CANCELLED)

    def error(self):
        response = v03_get_task.sync_detailed('unknown', client=self._client)
        check_error(response, HTTPStatus.NOT_FOUND, 'TASK_NOT_FOUND')
        equal((response.parsed.type_, response.parsed.code), ('TaskNotFoundError', -32001))

    def file_part(self):
        file = v03.FilePartFileWithBytes(file_with_bytes=RAW, name='four.bin', mime_type='application/octet-stream')
        sent = v03.PartFile(file=file)
        equal(self._send(v03.PartText(text='hello'), sent).history[0].content[1], sent)
        raw, url = [part.file for part in self._send(v03.PartText(text='/parts')).artifacts[0].parts[1:3]]
        equal(raw, v03.FilePartFileWithBytes(file_with_bytes=RAW_OF_DEMO, name='raw.txt', mime_type='text/plain'))
        equal((url.file_with_uri, url.mime_type), ('https://example.com/map.png', 'image/png'))

    def data_part(self):
        sent = v03.PartData(data=v03.DataPart(data=v03.Struct.from_dict(DATA)))
        equal(self._send(v03.PartText(text='hello'), sent).history[0].content[1], sent)
        received = self._send(v03.PartText(text='/parts')).artifacts[0].parts[3]
        equal(received.data.data.to_dict(), DATA_OF_DEMO)


results.run(V1(), V03())
