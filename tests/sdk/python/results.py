"""Result lines of the Python programs, in the form that scripts/sdk-proof counts."""

import sys
import traceback


def run(*clients):
    """Runs every public method of each client and exits with status 1 if one of them fails."""
    failures = 0
    for client in clients:
        for test in [name for name in vars(type(client)) if name[0].islower()]:
            name = f'python {client.NAME}: {test}'
            try:
                getattr(client, test)()
            except Exception:
                failures += 1
                print(f'FAILED {name}')
                print('    ' + traceback.format_exc().rstrip().replace('\n', '\n    '))
            else:
                print(f'ok {name}')
    sys.exit(failures > 0)


def equal(actual, expected):
    assert actual == expected, f'{actual!r} is not {expected!r}'
