import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.function.BiFunction;
import java.util.function.Consumer;

/** HTTP+JSON clients of protocol 1.0 and 0.3 on code generated from openapi/. The argument is the URL of the server. */
public final class Client {
    /** The server may join chunks, so an update may have several parts. */
    static final List<String> CHUNKS = List.of("chunk 1 of 3\n", "chunk 2 of 3\n", "chunk 3 of 3\n");

    /** The generated client omits members that are null. */
    static final Map<String, Object> DATA = Map.of("city", "Lisbon", "numbers", List.of(1.0, 2.5));

    static final byte[] RAW = {0, 1, (byte) 254, (byte) 255};
    static final byte[] RAW_OF_DEMO = "A raw part.\n".getBytes(StandardCharsets.UTF_8);
    static final int TIMEOUT_MILLISECONDS = 20_000;

    private Client() {}

    public static void main(String[] arguments) {
        var server = arguments[0];
        Results.run("HTTP+JSON 1.0", new ClientV1(server).tests());
        Results.run("HTTP+JSON 0.3", new ClientV03(server).tests());
        Results.exit();
    }

    static Map<String, Object> dataOfDemo() {
        var data = new LinkedHashMap<String, Object>();
        data.put("a", "data part");
        data.put("numbers", List.of(1.0, 2.5));
        data.put("nothing", null);
        return data;
    }

    /** Reads the data of a server-sent event. */
    interface EventReader<Event> {
        Event read(String json) throws IOException;
    }

    /** Reads the events of a stream, whose request the generated code builds. */
    static <Event> void events(okhttp3.Call call, EventReader<Event> reader, Consumer<Event> received)
            throws IOException {
        try (var response = call.execute()) {
            Results.equal(response.code(), 200);
            var lines = response.body().source();
            for (var line = lines.readUtf8Line(); line != null; line = lines.readUtf8Line()) {
                if (line.startsWith("data:")) {
                    received.accept(reader.read(line.substring("data:".length())));
                }
            }
        }
    }

    /** Returns the error of a rejected call, which the function creates from the status and the body. */
    static <Error> Error rejection(
            Callable<?> call, Class<? extends Exception> type, BiFunction<Integer, String, Error> error)
            throws Exception {
        try {
            call.call();
        } catch (Exception exception) {
            if (!type.isInstance(exception)) {
                throw exception;
            }
            var status = (Integer) type.getMethod("getCode").invoke(exception);
            var body = (String) type.getMethod("getResponseBody").invoke(exception);
            return error.apply(status, body);
        }
        throw new AssertionError("not rejected");
    }

    static void equalBytes(byte[] actual, byte[] expected) {
        Results.equal(Arrays.toString(actual), Arrays.toString(expected));
    }
}
