import com.google.protobuf.util.JsonFormat;
import io.grpc.Status.Code;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import lf.a2a.v1.A2AServiceGrpc;
import lf.a2a.v1.A2AServiceGrpc.A2AServiceBlockingStub;
import lf.a2a.v1.AgentCard;
import lf.a2a.v1.AgentSkill;
import lf.a2a.v1.Artifact;
import lf.a2a.v1.CancelTaskRequest;
import lf.a2a.v1.GetExtendedAgentCardRequest;
import lf.a2a.v1.GetTaskRequest;
import lf.a2a.v1.ListTasksRequest;
import lf.a2a.v1.Message;
import lf.a2a.v1.Part;
import lf.a2a.v1.Role;
import lf.a2a.v1.SendMessageRequest;
import lf.a2a.v1.StreamResponse;
import lf.a2a.v1.SubscribeToTaskRequest;
import lf.a2a.v1.Task;
import lf.a2a.v1.TaskState;

/** Tests of a client of protocol 1.0. */
final class ClientV1 {
    private final AgentCard card;
    private final A2AServiceBlockingStub stub;

    ClientV1(String server) throws Exception {
        var builder = AgentCard.newBuilder();
        Client.agentCard(server, "1.0", JsonFormat.parser(), builder);
        card = builder.build();
        var address = card.getSupportedInterfacesList().stream()
                .filter(i -> i.getProtocolBinding().equals("GRPC") && i.getProtocolVersion().equals("1.0"))
                .findFirst().orElseThrow().getUrl();
        stub = A2AServiceGrpc.newBlockingStub(Client.connect(address));
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

    private A2AServiceBlockingStub call() {
        return Client.within(stub);
    }

    private static Part text(String text) {
        return Part.newBuilder().setText(text).build();
    }

    private static SendMessageRequest.Builder request(Part... parts) {
        var message = Message.newBuilder().setMessageId("m").setRole(Role.ROLE_USER).addAllParts(List.of(parts));
        return SendMessageRequest.newBuilder().setMessage(message);
    }

    private Task task(Part... parts) {
        return call().sendMessage(request(parts).build()).getTask();
    }

    private Task start(String command) {
        var request = request(text(command));
        request.getConfigurationBuilder().setReturnImmediately(true);
        return call().sendMessage(request.build()).getTask();
    }

    private Task cancel(String id) {
        return call().cancelTask(CancelTaskRequest.newBuilder().setId(id).build());
    }

    private void card() {
        Results.equal(card.getName(), "Demo");
        Results.equal(card.getCapabilities().getStreaming(), true);
        Results.equal(card.getSkillsList().stream().map(AgentSkill::getId).toList(), List.of("echo", "provoke"));
    }

    private void extendedCardIsRejected() throws Exception {
        var request = GetExtendedAgentCardRequest.getDefaultInstance();
        Client.Rejection.check(
                () -> call().getExtendedAgentCard(request), Code.FAILED_PRECONDITION, "UNSUPPORTED_OPERATION");
    }

    private void send() {
        var task = task(text("hello"));
        Results.equal(task.getStatus().getState(), TaskState.TASK_STATE_COMPLETED);
        Results.equal(task.getArtifacts(0).getParts(0).getText(), "hello");
    }

    private void sendWithMessageAsReply() {
        var message = call().sendMessage(request(text("/message hi")).build()).getMessage();
        Results.equal(message.getRole(), Role.ROLE_AGENT);
        Results.equal(message.getPartsList(), List.of(text("hi")));
    }

    private void stream() {
        var events = new ArrayList<StreamResponse>();
        call().sendStreamingMessage(request(text("/stream 3 1")).build()).forEachRemaining(events::add);
        Results.equal(events.get(0).getPayloadCase(), StreamResponse.PayloadCase.TASK);
        var updates = events.stream().filter(StreamResponse::hasArtifactUpdate)
                .map(StreamResponse::getArtifactUpdate).toList();
        var texts = updates.stream().flatMap(update -> update.getArtifact().getPartsList().stream())
                .map(Part::getText).toList();
        Results.equal(texts, Client.CHUNKS);
        Results.equal(updates.stream().filter(update -> update.getLastChunk()).count(), 1L);
        Results.equal(updates.get(updates.size() - 1).getLastChunk(), true);
        var last = events.get(events.size() - 1).getStatusUpdate();
        Results.equal(last.getStatus().getState(), TaskState.TASK_STATE_COMPLETED);
    }

    private void get() {
        var sent = task(text("hello"));
        var request = GetTaskRequest.newBuilder().setId(sent.getId());
        var task = call().getTask(request.setHistoryLength(1).build());
        Results.equal(List.of(task.getId(), task.getContextId()), List.of(sent.getId(), sent.getContextId()));
        Results.equal(task.getStatus(), sent.getStatus());
        Results.equal(task.getStatus().getTimestamp().getSeconds() > 0, true);
        Results.equal(task.getHistoryCount(), 1);
        Results.equal(task.getHistory(0).getPartsList(), List.of(text("hello")));
        Results.equal(call().getTask(request.setHistoryLength(0).build()).getHistoryCount(), 0);
    }

    private void list() {
        var first = task(text("first"));
        var request = request(text("second"));
        request.getMessageBuilder().setContextId(first.getContextId());
        var second = call().sendMessage(request.build()).getTask();
        var page = ListTasksRequest.newBuilder().setContextId(first.getContextId()).setPageSize(1);
        page.setStatus(TaskState.TASK_STATE_COMPLETED);
        var ids = new ArrayList<String>();
        for (int pages = 0; pages < 2; pages++) {
            var response = call().listTasks(page.build());
            Results.equal(List.of(response.getPageSize(), response.getTotalSize()), List.of(1, 2));
            response.getTasksList().forEach(task -> ids.add(task.getId()));
            page.setPageToken(response.getNextPageToken());
        }
        Results.equal(page.getPageToken(), "");
        Results.equal(ids, List.of(second.getId(), first.getId()));
    }

    private void cancel() {
        var task = start("/slow 60");
        Results.oneOf(
                task.getStatus().getState(), TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING);
        var canceled = cancel(task.getId());
        Results.equal(canceled.getId(), task.getId());
        Results.equal(canceled.getStatus().getState(), TaskState.TASK_STATE_CANCELED);
    }

    private void subscribe() {
        var id = start("/slow 60").getId();
        var events = call().subscribeToTask(SubscribeToTaskRequest.newBuilder().setId(id).build());
        Results.equal(events.next().getTask().getId(), id);
        cancel(id);
        var last = StreamResponse.getDefaultInstance();
        while (events.hasNext()) {
            last = events.next();
        }
        Results.equal(last.getStatusUpdate().getStatus().getState(), TaskState.TASK_STATE_CANCELED);
    }

    private void error() throws Exception {
        var request = GetTaskRequest.newBuilder().setId("unknown").build();
        Client.Rejection.check(() -> call().getTask(request), Code.NOT_FOUND, "TASK_NOT_FOUND");
    }

    private void errorWithField() throws Exception {
        var rejection = Client.Rejection.of(() -> call().sendMessage(SendMessageRequest.getDefaultInstance()));
        Results.equal(rejection.code(), Code.INVALID_ARGUMENT);
        Results.equal(rejection.badRequest().getFieldViolationsCount(), 1);
        Results.equal(rejection.badRequest().getFieldViolations(0).getField(), "message");
    }

    private void filePart() {
        var sent = Part.newBuilder().setRaw(Client.RAW).setFilename("four.bin");
        sent.setMediaType("application/octet-stream");
        Results.equal(task(text("hello"), sent.build()).getHistory(0).getParts(1), sent.build());
        Artifact artifact = task(text("/parts")).getArtifacts(0);
        var raw = artifact.getParts(1);
        Results.equal(raw.getRaw().toStringUtf8(), "A raw part.\n");
        Results.equal(List.of(raw.getFilename(), raw.getMediaType()), List.of("raw.txt", "text/plain"));
        Results.equal(artifact.getParts(2).getUrl(), "https://example.com/map.png");
    }

    private void dataPart() {
        var sent = Part.newBuilder().setData(Client.value(Client.DATA)).build();
        Results.equal(task(text("hello"), sent).getHistory(0).getParts(1), sent);
        var received = task(text("/parts")).getArtifacts(0).getParts(3).getData();
        Results.equal(received, Client.value(Client.DATA_OF_DEMO));
    }
}
