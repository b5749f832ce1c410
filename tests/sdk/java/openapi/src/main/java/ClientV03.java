import a2av03.ApiClient;
import a2av03.ApiException;
import a2av03.api.A2AServiceApi;
import a2av03.model.AgentSkill;
import a2av03.model.CancelTaskRequest;
import a2av03.model.DataPart;
import a2av03.model.ErrorResponse;
import a2av03.model.FilePart;
import a2av03.model.FilePartFileWithBytes;
import a2av03.model.Message;
import a2av03.model.Part;
import a2av03.model.PartData;
import a2av03.model.PartFile;
import a2av03.model.PartText;
import a2av03.model.Role;
import a2av03.model.SendMessageConfiguration;
import a2av03.model.SendMessageRequest;
import a2av03.model.SendMessageResponseMsg;
import a2av03.model.SendMessageResponseTask;
import a2av03.model.StreamResponse;
import a2av03.model.StreamResponseArtifactUpdate;
import a2av03.model.StreamResponseStatusUpdate;
import a2av03.model.StreamResponseTask;
import a2av03.model.Task;
import a2av03.model.TaskState;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

/** Tests of a client of protocol 0.3. */
final class ClientV03 {
    private static final String VERSION = "0.3";

    private final A2AServiceApi api;

    ClientV03(String server) {
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
        tests.put("cancel", this::cancel);
        tests.put("subscribe", this::subscribe);
        tests.put("error", this::error);
        tests.put("file_part", this::filePart);
        tests.put("data_part", this::dataPart);
        return tests;
    }

    private static Part text(String text) {
        return new Part(new PartText().text(text));
    }

    private static SendMessageRequest request(boolean blocking, Part... content) {
        var message = new Message().messageId("m").role(Role.ROLE_USER).content(new ArrayList<>(List.of(content)));
        var request = new SendMessageRequest().message(message);
        request.setConfiguration(new SendMessageConfiguration().blocking(blocking));
        return request;
    }

    private Object send(SendMessageRequest request) throws ApiException {
        return api.sendMessage(request, VERSION, null, null).getActualInstance();
    }

    private Task task(Part... content) throws ApiException {
        return ((SendMessageResponseTask) send(request(true, content))).getTask();
    }

    private Task start(String command) throws ApiException {
        return ((SendMessageResponseTask) send(request(false, text(command)))).getTask();
    }

    private Task cancel(String id) throws ApiException {
        return api.cancelTask(id, VERSION, null, new CancelTaskRequest());
    }

    private static ErrorResponse rejection(Callable<?> call, int status, String reason) throws Exception {
        return Client.rejection(call, ApiException.class, (code, body) -> {
            try {
                Results.equal(code, status);
                var error = ErrorResponse.fromJson(body);
                var info = error.getError().getDetails().get(0).getErrorInfo();
                Results.equal(List.of(info.getReason(), info.getDomain()), List.of(reason, "a2a-protocol.org"));
                return error;
            } catch (IOException malformed) {
                throw new AssertionError(malformed);
            }
        });
    }

    private void card() throws ApiException {
        var card = api.getPublicAgentCard(VERSION);
        Results.equal(List.of(card.getName(), card.getProtocolVersion()), List.of("Demo", "0.3.0"));
        Results.equal(card.getSkills().stream().map(AgentSkill::getId).toList(), List.of("echo", "provoke"));
    }

    private void extendedCardIsRejected() throws Exception {
        rejection(() -> api.getAgentCard(VERSION, null), 404, "EXTENDED_AGENT_CARD_NOT_CONFIGURED");
    }

    private void send() throws ApiException {
        var task = task(text("hello"));
        Results.equal(task.getStatus().getState(), TaskState.TASK_STATE_COMPLETED);
        Results.equal(task.getArtifacts().get(0).getParts(), List.of(text("hello")));
    }

    private void sendWithMessageAsReply() throws ApiException {
        var message = ((SendMessageResponseMsg) send(request(true, text("/message hi")))).getMessage();
        Results.equal(message.getRole(), Role.ROLE_AGENT);
        Results.equal(message.getContent(), List.of(text("hi")));
    }

    private void stream() throws Exception {
        var events = new ArrayList<Object>();
        var call = api.sendStreamingMessageCall(request(true, text("/stream 3 1")), VERSION, null, null, null, null);
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
        Results.equal(last.getStatusUpdate().getFinal(), true);
    }

    private void get() throws ApiException {
        var sent = task(text("hello"));
        var task = api.getTask(sent.getId(), 1, VERSION, null);
        Results.equal(List.of(task.getId(), task.getContextId()), List.of(sent.getId(), sent.getContextId()));
        Results.equal(task.getStatus(), sent.getStatus());
        Results.equal(task.getHistory().size(), 1);
        Results.equal(task.getHistory().get(0).getContent(), List.of(text("hello")));
    }

    private void cancel() throws ApiException {
        var task = start("/slow 60");
        Results.oneOf(
                task.getStatus().getState(), TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING);
        var canceled = cancel(task.getId());
        Results.equal(canceled.getId(), task.getId());
        Results.equal(canceled.getStatus().getState(), TaskState.TASK_STATE_CANCELLED);
    }

    private void subscribe() throws Exception {
        var id = start("/slow 60").getId();
        var events = new ArrayList<Object>();
        var call = api.taskSubscriptionCall(id, VERSION, null, null, null);
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
        Results.equal(last.getStatusUpdate().getStatus().getState(), TaskState.TASK_STATE_CANCELLED);
    }

    private void error() throws Exception {
        var error = rejection(() -> api.getTask("unknown", null, VERSION, null), 404, "TASK_NOT_FOUND");
        Results.equal(error.getType(), "TaskNotFoundError");
    }

    private void filePart() throws ApiException {
        var sent = new FilePartFileWithBytes().fileWithBytes(Client.RAW).name("four.bin");
        sent.setMimeType("application/octet-stream");
        var part = new Part(new PartFile()._file(new FilePart(sent)));
        var received = task(text("hello"), part).getHistory().get(0).getContent().get(1).getPartFile();
        Results.equal(received.getFile().getFilePartFileWithBytes(), sent);
        var parts = task(text("/parts")).getArtifacts().get(0).getParts();
        var raw = parts.get(1).getPartFile().getFile().getFilePartFileWithBytes();
        Client.equalBytes(raw.getFileWithBytes(), Client.RAW_OF_DEMO);
        Results.equal(List.of(raw.getName(), raw.getMimeType()), List.of("raw.txt", "text/plain"));
        var url = parts.get(2).getPartFile().getFile().getFilePartFileWithUri();
        Results.equal(url.getFileWithUri(), "https://example.com/map.png");
    }

    private void dataPart() throws ApiException {
        var sent = new Part(new PartData().data(new DataPart().data(Client.DATA)));
        var received = task(text("hello"), sent).getHistory().get(0).getContent().get(1);
        Results.equal(received.getPartData().getData().getData(), Client.DATA);
        var parts = task(text("/parts")).getArtifacts().get(0).getParts();
        Results.equal(parts.get(3).getPartData().getData().getData(), Client.dataOfDemo());
    }
}
