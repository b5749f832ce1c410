"""Writes a wheel that carries the program: build.py PROGRAM VERSION TAG README DIRECTORY. Prints its path.

The same program makes the same wheel: each entry has the time of SOURCE_DATE_EPOCH.
"""

import base64
import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path

METADATA = """\
Metadata-Version: 2.1
Name: a2a-service
Version: {version}
Summary: A2A (Agent2Agent) server and client: gRPC, HTTP+JSON and JSON-RPC
License: Apache-2.0
Requires-Python: >=3.9
Description-Content-Type: text/markdown

{readme}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: a2a-service
Root-Is-Purelib: false
Tag: {tag}
"""

# `uvx a2a-service` runs the command that has the name of the package.
ENTRY_POINTS = """\
[console_scripts]
a2a-service = a2a_service.__main__:main
"""


def main() -> None:
    program, version, tag, readme, directory = sys.argv[1:]
    name = f"a2a_service-{version}"
    here = Path(__file__).parent
    files = {
        "a2a_service/__init__.py": b"",
        "a2a_service/__main__.py": (here / "__main__.py").read_bytes(),
        f"{name}.data/scripts/a2a": Path(program).read_bytes(),
        f"{name}.dist-info/METADATA": METADATA.format(version=version, readme=Path(readme).read_text()).encode(),
        f"{name}.dist-info/WHEEL": WHEEL.format(tag=tag).encode(),
        f"{name}.dist-info/entry_points.txt": ENTRY_POINTS.encode(),
        f"{name}.dist-info/licenses/LICENSE": (here.parent.parent / "LICENSE").read_bytes(),
    }
    record = f"{name}.dist-info/RECORD"
    lines = [f"{path},sha256={digest(content)},{len(content)}\n" for path, content in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    # Zip archives have no time before 1980.
    modified = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800))[:6]
    path = Path(directory) / f"{name}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file, content in files.items():
            entry = zipfile.ZipInfo(file, modified)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if file.endswith("/scripts/a2a") else 0o100644) << 16
            wheel.writestr(entry, content)
    print(path)


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main()
