"""What the Python programs share: a line for each result, which scripts/interop counts, and the words of tests."""

import asyncio
import sys
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


async def check_all(name, tests):
    """Runs each method whose name begins with a small letter, of the class and of what it extends."""
    for test in dict.fromkeys(it for kind in reversed(type(tests).mro()) for it in vars(kind)):
        if test[0].islower() and (run := getattr(tests, test)):
            await check(f'{name} {test}', run)


def run(main):
    """Runs a program, which has failed if one of its tests has."""
    asyncio.run(main())
    sys.exit(failures > 0)


def equal(got, expected):
    assert got == expected, f'{got!r} is not {expected!r}'


async def error_of(kind, awaitable):
    """What is raised, which must be of this kind."""
    try:
        got = await awaitable
    except kind as error:
        return error
    raise AssertionError(f'{got!r} and no {kind}')


async def all_of(stream):
    return [it async for it in stream]


def chunks(count):
    """What `/stream` says in so many chunks."""
    return [f'chunk {n} of {count}\n' for n in range(1, count + 1)]


# Text that is more than ASCII, with what JSON and server-sent events must escape.
EVERY_SCRIPT = 'naïve Ω 漢字 \U0001f980 "\\\n\t\u2028 end'
