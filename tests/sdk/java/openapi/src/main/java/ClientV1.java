import a2av1.ApiClient;
import a2av1.ApiException;
import a2av1.api.A2AServiceApi;
import a2av1.model.AgentSkill;
import a2av1.model.BadRequest;
import a2av1.model.CancelTaskBody;
import a2av1.model.ErrorResponse;
import a2av1.model.ErrorStatus;
import a2av1.model.Message;
import a2av1.model.Part;
import a2av1.model.PartData;
import a2av1.model.PartRaw;
import a2av1.model.PartText;
import a2av1.model.Role;
import a2av1.model.SendMessageConfiguration;
import a2av1.model.SendMessageRequest;
import a2av1.model.SendMessageResponseMessage;
import a2av1.model.SendMessageResponseTask;
import a2av1.model.StreamResponse;
import a2av1.model.StreamResponseArtifactUpdate;
import a2av1.model.StreamResponseStatusUpdate;
import a2av1.model.StreamResponseTask;
import a2av1.model.Task;
import a2av1.model.TaskState;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

/** Tests of a client of protocol 1.0. */
final class ClientV1 {
    private static final String VERSION = "1.0";

    private final A2AServiceApi api;
    private final String server;

    ClientV1(String server) {
        this.server = server;
        api = new A2AServiceApi(
                new ApiClient().setBasePath(server).setReadTimeout(Client.TIMEOUT_MILLISECONDS));
    }

    Map<String, Results.Test> tests() {
        var tests = new LinkedHashMap<String, Results.Test>();
        tests.put("card", this::card);
        tests.put("extended_card_is_rejected", this::extendedCardIsRejected);
        tests.put("send", this::send);
        tests.put("send_with_message_as_reply", this::sendWithMessageAsReply);
        tests.put("stream", this::stream);
        tests.put("get", this::get);
        tests.put("list", this::list);
        tests.put("cancel", this::cancel);
        tests.put("subscribe", this::subscribe);
        tests.put("error", this::error);
        tests.put("error_with_field", this::errorWithField);
        tests.put("file_part", this::filePart);
        tests.put("data_part", this::dataPart);
        return tests;
    }

    private static Part text(String text) {
        return new Part(new PartText().text(text));
    }

    private static SendMessageRequest request(Part... parts) {
        var message = new Message().messageId("m").role(Role.ROLE_USER).parts(new ArrayList<>(List.of(parts)));
        return new SendMessageRequest().message(message);
    }

    private Object send(SendMessageRequest request) throws ApiException {
        return api.sendMessage(request, VERSION, null, null).getActualInstance();
    }

    private Task task(Part... parts) throws ApiException {
        return ((SendMessageResponseTask) send(request(parts))).getTask();
    }

    private Task start(String command) throws ApiException {
        var request = request(text(command));
        request.setConfiguration(new SendMessageConfiguration().returnImmediately(true));
        return ((SendMessageResponseTask) send(request)).getTask();
    }

    private Task cancel(String id) throws ApiException {
        return api.cancelTask(id, VERSION, null, new CancelTaskBody());
    }

    private static ErrorStatus rejection(Callable<?> call, int status, String reason) throws Exception {
        return Client.rejection(call, ApiException.class, (code, body) -> {
            try {
                Results.equal(code, status);
                var error = ErrorResponse.fromJson(body).getError();
                var info = error.getDetails().get(0).getErrorInfo();
                Results.equal(List.of(info.getReason(), info.getDomain()), List.of(reason, "a2a-protocol.org"));
                return error;
            } catch (IOException malformed) {
                throw new AssertionError(malformed);
            }
        });
    }

    private void card() throws ApiException {
        var card = api.getPublicAgentCard(VERSION);
        Results.equal(card.getName(), "Demo");
        Results.equal(card.getCapabilities().getStreaming(), true);
        Results.equal(card.getSkills().stream().map(AgentSkill::getId).toList(), List.of("echo", "provoke"));
        Results.equal(card.getSupportedInterfaces().stream().anyMatch(i -> i.getUrl().equals(server)
                && i.getProtocolBinding().equals("HTTP+JSON") && i.getProtocolVersion().equals(VERSION)), true);
    }

    private void extendedCardIsRejected() throws Exception {
        rejection(() -> api.getExtendedAgentCard(null, VERSION, null), 400, "UNSUPPORTED_OPERATION");
    }

    private void send() throws ApiException {
        var task = task(text("hello"));
        Results.equal(task.getStatus().getState(), TaskState.TASK_STATE_COMPLETED);
        Results.equal(task.getArtifacts().get(0).getParts(), List.of(text("hello")));
    }

    private void sendWithMessageAsReply() throws ApiException {
        var message = ((SendMessageResponseMessage) send(request(text("/message hi")))).getMessage();
        Results.equal(message.getRole(), Role.ROLE_AGENT);
        Results.equal(message.getParts(), List.of(text("hi")));
    }

    private void stream() throws Exception {
        var events = new ArrayList<Object>();
        var call = api.sendStreamingMessageCall(request(text("/stream 3 1")), VERSION, null, null, null, null);
        Client.events(call, StreamResponse::fromJson, event -> events.add(event.getActualInstance()));
        Results.equal(events.get(0).getClass(), StreamResponseTask.class);
        var updates = events.stream().filter(StreamResponseArtifactUpdate.class::isInstance)
                .map(event -> ((StreamResponseArtifactUpdate) event).getArtifactUpdate()).toList();
        var texts = updates.stream().flatMap(update -> update.getArtifact().getParts().stream())
                .map(part -> part.getPartText().getText()).toList();
        Results.equal(texts, Client.CHUNKS);
        Results.equal(updates.stream().filter(update -> Boolean.TRUE.equals(update.getLastChunk())).count(), 1L);
        Results.equal(updates.get(updates.size() - 1).getLastChunk(), true);
        var last = (StreamResponseStatusUpdate) events.get(events.size() - 1);
        Results.equal(last.getStatusUpdate().getStatus().getState(), TaskState.TASK_STATE_COMPLETED);
    }

    private void get() throws ApiException {
        var sent = task(text("hello"));
        var task = api.getTask(sent.getId(), null, 1, VERSION, null);
        Results.equal(List.of(task.getId(), task.getContextId()), List.of(sent.getId(), sent.getContextId()));
        Results.equal(task.getStatus(), sent.getStatus());
        Results.equal(task.getStatus().getTimestamp().toEpochSecond() > 0, true);
        Results.equal(task.getHistory().size(), 1);
        Results.equal(task.getHistory().get(0).getParts(), List.of(text("hello")));
        var withoutHistory = api.getTask(sent.getId(), null, 0, VERSION, null).getHistory();
        Results.equal(withoutHistory == null || withoutHistory.isEmpty(), true);
    }

    private void list() throws ApiException {
        var first = task(text("first"));
        var request = request(text("second"));
        request.getMessage().setContextId(first.getContextId());
        var second = ((SendMessageResponseTask) send(request)).getTask();
        var ids = new ArrayList<String>();
        String token = null;
        for (int pages = 0; pages < 2; pages++) {
            var state = TaskState.TASK_STATE_COMPLETED;
            var response = api.listTasks(
                    null, first.getContextId(), state, 1, token, null, null, null, VERSION, null);
            Results.equal(List.of(response.getPageSize(), response.getTotalSize()), List.of(1, 2));
            response.getTasks().forEach(task -> ids.add(task.getId()));
            token = response.getNextPageToken();
        }
        Results.equal(token, "");
        Results.equal(ids, List.of(second.getId(), first.getId()));
    }

    private void cancel() throws ApiException {
        var task = start("/slow 60");
        Results.oneOf(
                task.getStatus().getState(), TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING);
        var canceled = cancel(task.getId());
        Results.equal(canceled.getId(), task.getId());
        Results.equal(canceled.getStatus().getState(), TaskState.TASK_STATE_CANCELED);
    }

    private void subscribe() throws Exception {
        var id = start("/slow 60").getId();
        var events = new ArrayList<Object>();
        var call = api.subscribeToTaskCall(id, null, VERSION, null, null, null);
        Client.events(call, StreamResponse::fromJson, event -> {
            events.add(event.getActualInstance());
            if (event.getActualInstance() instanceof StreamResponseTask first) {
                Results.equal(first.getTask().getId(), id);
                try {
                    cancel(id);
                } catch (ApiException error) {
                    throw new AssertionError(error);
                }
            }
        });
        Results.equal(events.get(0).getClass(), StreamResponseTask.class);
        var last = (StreamResponseStatusUpdate) events.get(events.size() - 1);
        Results.equal(last.getStatusUpdate().getStatus().getState(), TaskState.TASK_STATE_CANCELED);
    }

    private void error() throws Exception {
        var error = rejection(() -> api.getTask("unknown", null, null, VERSION, null), 404, "TASK_NOT_FOUND");
        Results.equal(error.getStatus(), "NOT_FOUND");
    }

    private void errorWithField() throws Exception {
        var error = rejection(() -> send(request()), 400, "INVALID_PARAMS");
        var violations = error.getDetails().stream().filter(d -> d.getActualInstance() instanceof BadRequest)
                .flatMap(detail -> detail.getBadRequest().getFieldViolations().stream()).toList();
        Results.equal(violations.size(), 1);
        Results.equal(violations.get(0).getField(), "message.parts");
    }

    private void filePart() throws ApiException {
        var sent = new PartRaw().raw(Client.RAW).filename("four.bin").mediaType("application/octet-stream");
        var received = task(text("hello"), new Part(sent)).getHistory().get(0).getParts().get(1).getPartRaw();
        Results.equal(received, sent);
        var parts = task(text("/parts")).getArtifacts().get(0).getParts();
        var raw = parts.get(1).getPartRaw();
        Client.equalBytes(raw.getRaw(), Client.RAW_OF_DEMO);
        Results.equal(List.of(raw.getFilename(), raw.getMediaType()), List.of("raw.txt", "text/plain"));
        Results.equal(parts.get(2).getPartUrl().getUrl(), "https://example.com/map.png");
    }

    private void dataPart() throws ApiException {
        var sent = new Part(new PartData().data(Client.DATA));
        var received = task(text("hello"), sent).getHistory().get(0).getParts().get(1);
        Results.equal(received.getPartData().getData(), Client.DATA);
        var parts = task(text("/parts")).getArtifacts().get(0).getParts();
        Results.equal(parts.get(3).getPartData().getData(), Client.dataOfDemo());
    }
}
