"""One line for each result, which scripts/interop counts."""

import asyncio
import traceback

failures = 0


async def check(name, run, seconds=20):
    """Runs one test, which has failed if it raises or takes too long."""
    global failures
    try:
        await asyncio.wait_for(run(), seconds)
    except Exception:
        failures += 1
        print(f'FAILED {name}')
        print('    ' + traceback.format_exc().replace('\n', '\n    ').rstrip())
    else:
        print(f'ok {name}')
