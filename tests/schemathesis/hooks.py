"""Extensions of Schemathesis for this server: commands of the demo agent, schemas of streams, and accepted failures.

Each accepted failure is a rule with its reason in `accepted`. All other failures fail the run.
"""

import json
import re
import zlib

import schemathesis

# Header with the key of a send.
KEY_HEADER = "Idempotency-Key"

# Commands of the demo agent that produce each state of a task.
COMMANDS = [
    "/ask",
    "/auth",
    "/fail",
    "/hang",
    "/help",
    "/message",
    "/panic",
    "/parts",
    "/reject",
    "/slow 0.05",
    "/stream 3 10",
]

# Codes of failures: a response that violates its schema, a valid request that is rejected, and the header `Allow` with other
# methods than those of the document.
VIOLATES_SCHEMA, REJECTED, OTHER_METHODS = "ST108", "ST202", "ST205"

# Ends of paths by the reasons of errors that depend on the state of the task or on the agent, not on the request. The
# specification of A2A gives them HTTP status 400; Schemathesis expects 404 or 409.
STATE_REASONS = {
    "TASK_NOT_CANCELABLE": (":cancel",),
    "UNSUPPORTED_OPERATION": ("/message:send", "/message:stream", ":subscribe", "/extendedAgentCard"),
}

# Fields with values that only the server issues. A schema cannot describe them.
ISSUED = {"pageToken", "Last-Event-ID", "lastEventId"}

# Error of the URL of a webhook, which the pattern in its schema does not describe completely.
URL_ERROR = "must be an absolute URL with http or https"


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """Adapts a document to Schemathesis.

    Streams are described as Schemathesis expects: OpenAPI 3.1 has no form for them, and the documents describe their data.
    Messages have no context, which belongs to a task: Schemathesis does not begin a sequence with a request that refers to a
    resource, such as a context, that no response contains.
    """
    del raw_schema["components"]["schemas"]["Message"]["properties"]["contextId"]
    for path in raw_schema["paths"].values():
        for operation in path.values():
            for response in operation["responses"].values():
                stream = response.get("content", {}).get("text/event-stream")
                if stream:
                    stream["schema"] = event_schema(stream["schema"])


def event_schema(schema):
    """Returns the schema of an event: either with data of this schema, or named `error` with an error."""

    def named(name, data):
        text = {"contentMediaType": "application/json", "contentSchema": data}
        return {"properties": {"event": {"const": name}, "data": text}, "required": ["data"]}

    error = named("error", {"$ref": "#/components/schemas/ErrorResponse"})
    return {"if": {"properties": {"event": {"const": "error"}}}, "then": error, "else": named("message", schema)}


@schemathesis.hook
def before_call(context, case, kwargs):
    """Adds commands to messages, makes idempotency keys unique, and removes ids that are not those of a response.

    All depend on the request only, so that it can be repeated. Without them, most sends would be conflicts, because of an
    earlier send with the same simple key, or messages to missing tasks, or produce tasks that are completed at once.
    """
    remove_tenant(case.query)
    remove_tenant(case.body)
    if not isinstance(case.body, dict):
        return
    replace_webhooks(case.body)
    digest = zlib.crc32(json.dumps(case.body, sort_keys=True).encode())
    message = case.body.get("message")
    if isinstance(message, dict) and digest % 4 and is_valid_id(message.get("taskId")):
        del message["taskId"]
    # The member for the parts of a message is named `parts` in protocol 1.0, and `content` in 0.3.
    for parts in (message.get("parts"), message.get("content")) if isinstance(message, dict) else ():
        if isinstance(parts, list) and parts and digest % 2:
            parts.insert(0, {"text": COMMANDS[digest % len(COMMANDS)]})
    key = case.headers.get(KEY_HEADER) if case.headers else None
    # Invalid keys, which are empty or too long, are sent as they are.
    if isinstance(key, str) and 0 < len(key) < 200:
        case.headers[KEY_HEADER] = f"{key}{digest:08x}"


def replace_webhooks(members):
    """Replaces the URLs of webhooks: which of them are permitted is a setting of the server, and nothing may be sent to them."""
    for name, value in members.items():
        if name == "url" and isinstance(value, str) and re.match("https?://", value, re.IGNORECASE):
            members[name] = f"https://hook.invalid/{zlib.crc32(value.encode()):08x}"
        elif name != "message" and isinstance(value, dict):
            replace_webhooks(value)


def remove_tenant(members):
    """Removes a valid tenant from a query or body.

    A tenant is part of the identity of a task, but not of its response, so that no link can pass it to other requests. The
    tenants of paths are passed.
    """
    if isinstance(members, dict) and is_valid_id(members.get("tenant")):
        del members["tenant"]


def is_valid_id(value):
    return isinstance(value, str) and len(value) < 50


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Returns false if a failure is accepted."""
    return not accepted(failure, case, response)


def accepted(failure, case, response):
    """Returns true for failures that are neither a defect of the server nor of the document."""
    if failure.code == REJECTED and response.status_code == 400:
        return is_not_in_schema(case, response)
    # `A2A-Version` selects the version of the public card. A request for another version than that of the document, which
    # is an invalid request, has a card of another version.
    if failure.code == VIOLATES_SCHEMA and case.operation.path == "/.well-known/agent-card.json":
        parameter = case.operation.schema.raw_schema["components"]["parameters"]["A2AVersion"]
        version = response.request.headers.get("A2A-Version")
        return version is not None and version not in parameter["schema"]["enum"]
    # The document has the paths of the proto files. 0.3 names one of them in the singular. The server accepts the singular for
    # all methods, for clients that do so everywhere.
    return failure.code == OTHER_METHODS and case.operation.path == "/v1/task/{taskId}/pushNotificationConfigs"


def is_not_in_schema(case, response):
    """Returns true for an error that a valid request can have."""
    try:
        error = json.loads(response.content)["error"]
        details = error["details"]
    except (ValueError, KeyError, TypeError):
        return False
    reasons = [detail["reason"] for detail in details if "reason" in detail]
    if any(case.operation.path.endswith(STATE_REASONS.get(reason, ())) for reason in reasons):
        return True
    # Limits are settings of the server. The error names the setting.
    if any("limit" in detail.get("metadata", {}) for detail in details):
        return True
    # In protocol 0.3, a message to a task that has ended is an invalid parameter, without a field.
    violations = [violation for detail in details for violation in detail.get("fieldViolations", [])]
    if not violations:
        return error["message"].endswith(" is in a terminal state")
    return all(violation["field"] in ISSUED or violation["description"] == URL_ERROR for violation in violations)
