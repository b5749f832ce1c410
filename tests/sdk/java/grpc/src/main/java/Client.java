import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import com.google.protobuf.util.JsonFormat;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import io.grpc.Channel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** gRPC clients of protocol 1.0 and 0.3 on code generated from proto/. The argument is the URL of the server. */
public final class Client {
    /** The server may join chunks, so an update may have several parts. */
    static final List<String> CHUNKS = List.of("chunk 1 of 3\n", "chunk 2 of 3\n", "chunk 3 of 3\n");

    static final String DATA = "{\"city\": \"Lisbon\", \"numbers\": [1, 2.5], \"nothing\": null}";
    static final String DATA_OF_DEMO = "{\"a\": \"data part\", \"numbers\": [1, 2.5], \"nothing\": null}";
    static final ByteString RAW = ByteString.copyFrom(new byte[] {0, 1, (byte) 254, (byte) 255});
    static final long TIMEOUT_SECONDS = 20;

    private Client() {}

    public static void main(String[] arguments) throws Exception {
        var server = arguments[0];
        Results.run("gRPC 1.0", new ClientV1(server).tests());
        Results.run("gRPC 0.3", new ClientV03(server).tests());
        Results.exit();
    }

    /** Reads the agent card for a protocol version. */
    static void agentCard(String server, String version, JsonFormat.Parser parser, Message.Builder card)
            throws Exception {
        var request = HttpRequest.newBuilder(URI.create(server + "/.well-known/agent-card.json"));
        request.header("A2A-Version", version);
        var response = HttpClient.newHttpClient().send(request.build(), BodyHandlers.ofString());
        Results.equal(response.statusCode(), 200);
        parser.merge(response.body(), card);
    }

    static Channel connect(String address) {
        return ManagedChannelBuilder.forTarget(address).usePlaintext().build();
    }

    static Struct struct(String json) {
        return parse(json, Struct.newBuilder()).build();
    }

    static Value value(String json) {
        return parse(json, Value.newBuilder()).build();
    }

    private static <Builder extends Message.Builder> Builder parse(String json, Builder builder) {
        try {
            JsonFormat.parser().merge(json, builder);
        } catch (InvalidProtocolBufferException error) {
            throw new AssertionError(error);
        }
        return builder;
    }

    /** Error of a rejected call: its status code, and the details that this program knows. */
    record Rejection(Status.Code code, ErrorInfo info, BadRequest badRequest) {
        static Rejection of(Runnable call) throws InvalidProtocolBufferException {
            try {
                call.run();
            } catch (StatusRuntimeException error) {
                var info = ErrorInfo.getDefaultInstance();
                var badRequest = BadRequest.getDefaultInstance();
                for (var detail : StatusProto.fromThrowable(error).getDetailsList()) {
                    info = detail.is(ErrorInfo.class) ? detail.unpack(ErrorInfo.class) : info;
                    badRequest = detail.is(BadRequest.class) ? detail.unpack(BadRequest.class) : badRequest;
                }
                return new Rejection(error.getStatus().getCode(), info, badRequest);
            }
            throw new AssertionError("not rejected");
        }

        static void check(Runnable call, Status.Code code, String reason) throws InvalidProtocolBufferException {
            var rejection = of(call);
            Results.equal(rejection.code, code);
            Results.equal(rejection.info.getReason(), reason);
            Results.equal(rejection.info.getDomain(), "a2a-protocol.org");
        }
    }

    /** Adds a deadline to each call. */
    static <Stub extends io.grpc.stub.AbstractStub<Stub>> Stub within(Stub stub) {
        return stub.withDeadlineAfter(TIMEOUT_SECONDS, TimeUnit.SECONDS);
    }
}
