import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.Arrays;
import java.util.Map;
import java.util.Objects;

/** Result lines of the Java programs, in the form that scripts/sdk-proof counts. */
final class Results {
    private static int failures = 0;

    private Results() {}

    /** Test of one client, which throws if the client fails. */
    interface Test {
        void run() throws Exception;
    }

    /** Runs the tests of a client, in the order of the map. */
    static void run(String client, Map<String, Test> tests) {
        tests.forEach((name, test) -> {
            try {
                test.run();
                System.out.println("ok java " + client + ": " + name);
            } catch (Exception | AssertionError error) {
                failures += 1;
                var trace = new StringWriter();
                error.printStackTrace(new PrintWriter(trace));
                var text = "FAILED java " + client + ": " + name + "\n" + trace.toString().strip();
                System.out.println(text.replace("\n", "\n    "));
            }
        });
    }

    /** Ends the program, with status 1 if a test failed. */
    static void exit() {
        System.out.flush();
        System.exit(failures > 0 ? 1 : 0);
    }

    static void equal(Object actual, Object expected) {
        if (!Objects.deepEquals(actual, expected)) {
            throw new AssertionError(actual + " is not " + expected);
        }
    }

    static void oneOf(Object actual, Object... expected) {
        if (!Arrays.asList(expected).contains(actual)) {
            throw new AssertionError(actual + " is not one of " + Arrays.toString(expected));
        }
    }
}
