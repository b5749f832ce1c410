// Result lines of the TypeScript programs, in the form that scripts/sdk-proof counts.

const TIMEOUT_MS = 20_000;

/** Tests of one client by name. */
export type Tests = Record<string, () => Promise<void>>;

/** Runs the tests of each client, and exits with status 1 if one of them fails or takes too long. */
export async function run(clients: Record<string, () => Promise<Tests>>): Promise<never> {
  let failures = 0;
  for (const [client, tests] of Object.entries(clients)) {
    for (const [name, test] of Object.entries(await tests())) {
      const timeout = new Promise<void>((_, reject) => {
        setTimeout(reject, TIMEOUT_MS, new Error(`not completed after ${TIMEOUT_MS} ms`)).unref();
      });
      try {
        await Promise.race([test(), timeout]);
        console.log(`ok typescript ${client}: ${name}`);
      } catch (error) {
        failures += 1;
        const text = error instanceof Error ? error.stack : String(error);
        console.log(`FAILED typescript ${client}: ${name}\n${text}`.replaceAll('\n', '\n    '));
      }
    }
  }
  process.exit(failures > 0 ? 1 : 0);
}
