"""Runs the program `a2a` of this package: `python -m a2a_service`, `uvx a2a-service`."""

import os
import sys
import sysconfig


def main() -> None:
    """Replaces the process with the program, which is beside the scripts of this environment."""
    schemes = [sysconfig.get_preferred_scheme(key) for key in ("prefix", "user")]
    directories = [sysconfig.get_path("scripts", scheme) for scheme in schemes]
    # `pip install --target DIR` puts it into DIR/bin.
    directories.append(os.path.join(os.path.dirname(os.path.dirname(__file__)), "bin"))
    programs = [os.path.join(directory, "a2a") for directory in directories]
    program = next(filter(os.path.isfile, programs), None)
    if program is None:
        sys.exit(f"error: the program is missing: {', '.join(programs)}")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
