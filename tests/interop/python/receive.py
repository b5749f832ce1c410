"""Push notifications for the Python SDK of protocol 1.0, standardwebhooks and PyJWT: python receive.py URL EVENTS

The second server sends events instead of tasks to configurations of 0.3."""

import hashlib
import sys
from datetime import datetime, timezone
from importlib.metadata import version

import harness
import httpx
import jwt
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as types03
from a2a.helpers import new_text_message
from a2a.types import (
    AgentCard,
    AuthenticationInfo,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    TaskPushNotificationConfig,
    TaskState,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from harness import chunks, equal
from receiver import Receiver
from standardwebhooks import Webhook, WebhookVerificationError

URL, EVENTS = sys.argv[1:]
SECRET, TOKEN = 'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD', 'a token without a prefix'
COMPLETED = TaskState.TASK_STATE_COMPLETED


async def connect(url, protocol):
    """A client that finds this version alone on the card."""
    async with httpx.AsyncClient(timeout=15) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
    only = AgentCard.FromString(card.SerializeToString())
    del only.supported_interfaces[:]
    only.supported_interfaces.extend(it for it in card.supported_interfaces if it.protocol_version == protocol)
    return ClientFactory(ClientConfig(supported_protocol_bindings=['JSONRPC'], streaming=False)).create(only)


async def notifications(url, protocol, receiver, **config):
    """The notifications of a task, and the task."""
    request = SendMessageRequest(
        message=new_text_message('/stream 3 50', role=Role.ROLE_USER),
        configuration=SendMessageConfiguration(
            task_push_notification_config=TaskPushNotificationConfig(url=receiver.url, **config)
        ),
    )
    async with await connect(url, protocol) as client:
        (answer,) = [it async for it in client.send_message(request)]
    return await receiver.until_completed(), answer.task


def text(artifact):
    return ''.join(part.text for part in artifact.parts)


def rejected(verify, kind):
    try:
        verify()
    except kind:
        return
    raise AssertionError(f'no {kind}')


class Sdk:
    async def stream_responses_of_1_0(self):
        with Receiver() as receiver:
            received, task = await notifications(URL, '1.0', receiver, token=TOKEN)
        # Unknown members are an error.
        events = [ParseDict(it.body, StreamResponse()) for it in received]
        equal([MessageToDict(it) for it in events], [it.body for it in received])
        equal((events[0].task.id, events[-1].status_update.status.state), (task.id, COMPLETED))
        texts = [text(it.artifact_update.artifact) for it in events if it.HasField('artifact_update')]
        equal(''.join(texts), ''.join(chunks(3)))
        for it in received:
            equal((it.headers['x-a2a-notification-token'], it.headers['content-type']), (TOKEN, 'application/a2a+json'))

    async def tasks_of_0_3(self):
        with Receiver() as receiver:
            received, task = await notifications(URL, '0.3', receiver, token=TOKEN)
        tasks = [conversions.to_core_task(types03.Task.model_validate(it.body)) for it in received]
        equal({it.id for it in tasks}, {task.id})
        equal(tasks[-1].status.state, COMPLETED)
        equal([text(it) for it in tasks[-1].artifacts], [''.join(chunks(3))])

    async def events_of_0_3(self):
        with Receiver() as receiver:
            received, task = await notifications(EVENTS, '0.3', receiver, token=TOKEN)
        kinds = {
            'task': types03.Task,
            'status-update': types03.TaskStatusUpdateEvent,
            'artifact-update': types03.TaskArtifactUpdateEvent,
        }
        events = [kinds[it.body['kind']].model_validate(it.body) for it in received]
        texts = [text(conversions.to_core_artifact(it.artifact)) for it in events if it.kind == 'artifact-update']
        equal((events[0].id, ''.join(texts)), (task.id, ''.join(chunks(3))))
        equal((events[-1].kind, events[-1].final), ('status-update', True))


class StandardWebhooks:
    async def _verify(self, token, webhook, other):
        for protocol in ('1.0', '0.3'):
            with Receiver() as receiver:
                received, _ = await notifications(URL, protocol, receiver, token=token)
            for it in received:
                equal(webhook.verify(it.data, it.headers), it.body)
                tampered = it.data.replace(b'COMPLETED', b'FAILED').replace(b'"kind"', b'"Kind"') + b' '
                rejected(lambda: webhook.verify(tampered, it.headers), WebhookVerificationError)
                rejected(lambda: other.verify(it.data, it.headers), WebhookVerificationError)
                early = str(int(it.headers['webhook-timestamp']) - 3600)
                for headers in (
                    {'webhook-timestamp': early},
                    {'webhook-id': 'other'},
                    # A replay an hour later, by the clock of the receiver: its own signature would be right.
                    {'webhook-timestamp': early, 'webhook-signature': signature(webhook, it, early)},
                ):
                    rejected(lambda: webhook.verify(it.data, it.headers | headers), WebhookVerificationError)

    async def secret_with_prefix(self):
        await self._verify(SECRET, Webhook(SECRET), Webhook('whsec_AAAA'))

    async def other_token(self):
        await self._verify(TOKEN, Webhook(TOKEN.encode()), Webhook(b'another token'))


def signature(webhook, notification, seconds):
    time = datetime.fromtimestamp(int(seconds), timezone.utc)
    return webhook.sign(notification.headers['webhook-id'], time, notification.data.decode())


class JsonWebTokens:
    async def signed_by_the_published_keys(self):
        with Receiver() as receiver:
            bearer = AuthenticationInfo(scheme='Bearer')
            received, _ = await notifications(URL, '1.0', receiver, authentication=bearer)
        keys = jwt.PyJWKClient(f'{URL}/.well-known/jwks.json')
        for it in received:
            scheme, token = it.headers['authorization'].split(' ')
            key = keys.get_signing_key_from_jwt(token)

            def verify(token=token, audience=receiver.origin, key=key):
                required = {'require': ['iss', 'aud', 'iat', 'exp', 'jti']}
                return jwt.decode(token, key, algorithms=['ES256', 'EdDSA'], audience=audience, options=required)

            claims = verify()
            digest = hashlib.sha256(it.data).hexdigest()
            equal((scheme, claims['jti'], claims['request_body_sha256']), ('Bearer', it.headers['webhook-id'], digest))
            header, payload, signed = token.split('.')
            tampered = '.'.join((header, payload, ('A' if signed[0] != 'A' else 'B') + signed[1:]))
            rejected(lambda: verify(token=tampered), jwt.InvalidSignatureError)
            rejected(lambda: verify(audience='http://other.invalid'), jwt.InvalidAudienceError)


async def main():
    for package, tests in (('a2a-sdk', Sdk()), ('standardwebhooks', StandardWebhooks()), ('PyJWT', JsonWebTokens())):
        await harness.check_all(f'{package} {version(package)} receives', tests)


harness.run(main)
