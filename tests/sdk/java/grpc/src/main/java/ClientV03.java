import a2a.v1.A2AServiceGrpc;
import a2a.v1.A2AServiceGrpc.A2AServiceBlockingStub;
import a2a.v1.AgentCard;
import a2a.v1.AgentSkill;
import a2a.v1.CancelTaskRequest;
import a2a.v1.DataPart;
import a2a.v1.FilePart;
import a2a.v1.GetAgentCardRequest;
import a2a.v1.GetTaskRequest;
import a2a.v1.Message;
import a2a.v1.Part;
import a2a.v1.Role;
import a2a.v1.SendMessageRequest;
import a2a.v1.StreamResponse;
import a2a.v1.Task;
import a2a.v1.TaskState;
import a2a.v1.TaskSubscriptionRequest;
import com.google.protobuf.util.JsonFormat;
import io.grpc.Status.Code;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Tests of a client of protocol 0.3, which has no method that lists tasks. */
final class ClientV03 {
    private final AgentCard card;
    private final A2AServiceBlockingStub stub;

    ClientV03(String server) throws Exception {
        var builder = AgentCard.newBuilder();
        // The card of 0.3 has members that the proto file does not have.
        Client.agentCard(server, "0.3", JsonFormat.parser().ignoringUnknownFields(), builder);
        card = builder.build();
        var address = card.getAdditionalInterfacesList().stream().filter(i -> i.getTransport().equals("GRPC"))
                .findFirst().orElseThrow().getUrl();
        stub = A2AServiceGrpc.newBlockingStub(Client.connect(address));
    }

    Map<String, Results.Test> tests() {
        var tests = new LinkedHashMap<String, Results.Test>();
        tests.put("card", this::card);
        tests.put("public_card_is_returned", this::publicCardIsReturned);
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

    private A2AServiceBlockingStub call() {
        return Client.within(stub);
    }

    private static Part text(String text) {
        return Part.newBuilder().setText(text).build();
    }

    private static SendMessageRequest request(boolean blocking, Part... content) {
        var request = SendMessageRequest.newBuilder();
        request.getRequestBuilder().setMessageId("m").setRole(Role.ROLE_USER).addAllContent(List.of(content));
        request.getConfigurationBuilder().setBlocking(blocking);
        return request.build();
    }

    private Task task(Part... content) {
        return call().sendMessage(request(true, content)).getTask();
    }

    private Task start(String command) {
        return call().sendMessage(request(false, text(command))).getTask();
    }

    private Task cancel(String id) {
        return call().cancelTask(CancelTaskRequest.newBuilder().setName("tasks/" + id).build());
    }

    private void card() {
        Results.equal(List.of(card.getName(), card.getProtocolVersion()), List.of("Demo", "0.3.0"));
        Results.equal(card.getSkillsList().stream().map(AgentSkill::getId).toList(), List.of("echo", "provoke"));
    }

    private void publicCardIsReturned() {
        var card = call().getAgentCard(GetAgentCardRequest.getDefaultInstance());
        Results.equal(List.of(card.getName(), card.getProtocolVersion()), List.of("Demo", "0.3.0"));
        Results.equal(card.getSupportsAuthenticatedExtendedCard(), false);
    }

    private void send() {
        var task = task(text("hello"));
        Results.equal(task.getStatus().getState(), TaskState.TASK_STATE_COMPLETED);
        Results.equal(task.getArtifacts(0).getParts(0).getText(), "hello");
    }

    private void sendWithMessageAsReply() {
        Message message = call().sendMessage(request(true, text("/message hi"))).getMsg();
        Results.equal(message.getRole(), Role.ROLE_AGENT);
        Results.equal(message.getContentList(), List.of(text("hi")));
    }

    private void stream() {
        var events = new ArrayList<StreamResponse>();
        call().sendStreamingMessage(request(true, text("/stream 3 1"))).forEachRemaining(events::add);
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
        Results.equal(last.getFinal(), true);
    }

    private void get() {
        var sent = task(text("hello"));
        var request = GetTaskRequest.newBuilder().setName("tasks/" + sent.getId()).setHistoryLength(1);
        var task = call().getTask(request.build());
        Results.equal(List.of(task.getId(), task.getContextId()), List.of(sent.getId(), sent.getContextId()));
        Results.equal(task.getStatus(), sent.getStatus());
        Results.equal(task.getHistoryCount(), 1);
        Results.equal(task.getHistory(0).getContentList(), List.of(text("hello")));
    }

    private void cancel() {
        var task = start("/slow 60");
        Results.oneOf(
                task.getStatus().getState(), TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING);
        var canceled = cancel(task.getId());
        Results.equal(canceled.getId(), task.getId());
        Results.equal(canceled.getStatus().getState(), TaskState.TASK_STATE_CANCELLED);
    }

    private void subscribe() {
        var id = start("/slow 60").getId();
        var events = call().taskSubscription(TaskSubscriptionRequest.newBuilder().setName("tasks/" + id).build());
        Results.equal(events.next().getTask().getId(), id);
        cancel(id);
        var last = StreamResponse.getDefaultInstance();
        while (events.hasNext()) {
            last = events.next();
        }
        Results.equal(last.getStatusUpdate().getStatus().getState(), TaskState.TASK_STATE_CANCELLED);
    }

    private void error() throws Exception {
        var request = GetTaskRequest.newBuilder().setName("tasks/unknown").build();
        Client.Rejection.check(() -> call().getTask(request), Code.NOT_FOUND, "TASK_NOT_FOUND");
    }

    private void filePart() {
        var file = FilePart.newBuilder().setFileWithBytes(Client.RAW).setName("four.bin");
        var sent = Part.newBuilder().setFile(file.setMimeType("application/octet-stream")).build();
        Results.equal(task(text("hello"), sent).getHistory(0).getContent(1), sent);
        var artifact = task(text("/parts")).getArtifacts(0);
        var raw = artifact.getParts(1).getFile();
        Results.equal(raw.getFileWithBytes().toStringUtf8(), "A raw part.\n");
        Results.equal(List.of(raw.getName(), raw.getMimeType()), List.of("raw.txt", "text/plain"));
        Results.equal(artifact.getParts(2).getFile().getFileWithUri(), "https://example.com/map.png");
    }

    private void dataPart() {
        var sent = Part.newBuilder().setData(DataPart.newBuilder().setData(Client.struct(Client.DATA))).build();
        Results.equal(task(text("hello"), sent).getHistory(0).getContent(1), sent);
        var received = task(text("/parts")).getArtifacts(0).getParts(3).getData().getData();
        Results.equal(received, Client.struct(Client.DATA_OF_DEMO));
    }
}
