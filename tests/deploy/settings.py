"""Settings of a container, for scripts/deploy: settings.py compose|kubernetes|cluster FILE DIRECTORY.

compose: prints the variables of the service, and writes the words of its health check to the file `healthcheck`.
kubernetes: writes the config map and the secret below `root/` where they are mounted, with the rights that the kubelet gives them,
and the paths of the probes to the file `probes`. Prints the arguments of the container.
cluster: makes the secrets of the composition in the folder `run`, and prints the variables of its servers, which a configuration of
HAProxy, the last argument, names.
"""

import base64
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml


def compose(file: Path, directory: Path) -> None:
    service = yaml.safe_load(file.read_text())["services"]["a2a"]
    kind, *words = service["healthcheck"]["test"]
    assert kind == "CMD" and service["read_only"] and service["cap_drop"] == ["ALL"], service
    (directory / "healthcheck").write_text(" ".join(words))
    for name, value in service["environment"].items():
        print(f"{name}={value}")


def kubernetes(file: Path, directory: Path) -> None:
    objects = {document["kind"]: document for document in yaml.safe_load_all(file.read_text())}
    pod = objects["StatefulSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    group = pod["securityContext"]["fsGroup"]
    assert objects["StatefulSet"]["spec"]["replicas"] == 1 and container["securityContext"]["readOnlyRootFilesystem"], pod
    claims = [claim["metadata"]["name"] for claim in objects["StatefulSet"]["spec"]["volumeClaimTemplates"]]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        path = directory / "root" / mount["mountPath"].lstrip("/")
        path.mkdir(parents=True, exist_ok=True)
        if mount["name"] in claims:
            continue
        volume = volumes[mount["name"]]
        if "configMap" in volume:
            source = objects["ConfigMap"]
            assert source["metadata"]["name"] == volume["configMap"]["name"], volume
            files, mode = {name: text.encode() for name, text in source["data"].items()}, 0o644
        elif "secret" in volume:
            source = objects["Secret"]
            assert source["metadata"]["name"] == volume["secret"]["secretName"], volume
            files = {name: base64.b64decode(text) for name, text in source["data"].items()}
            mode = volume["secret"]["defaultMode"]
        else:
            assert volume["emptyDir"] == {}, volume
            continue
        for name, content in files.items():
            (path / name).write_bytes(content)
            os.chown(path / name, 0, group)
            os.chmod(path / name, mode)
    probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")]
    (directory / "probes").write_text("".join(f"{path}\n" for path in probes))
    print("\n".join(container["args"]))


def cluster(file: Path, directory: Path) -> None:
    services = yaml.safe_load(file.read_text())["services"]
    servers = {name: service for name, service in services.items() if service["image"] == "a2a"}
    balanced = re.findall(r"^ +server (\S+) (\S+):8080$", Path(sys.argv[4]).read_text(), re.MULTILINE)
    assert [(name, name) for name in sorted(servers)] == sorted(balanced), (servers, balanced)
    [environment, *others] = [service["environment"] for service in servers.values()]
    assert others and all(other == environment for other in others), "the servers differ"
    for key in ("read_only", "cap_drop", "stop_grace_period", "healthcheck"):
        assert all(service[key] for service in servers.values()), key
    secrets = services["secrets"]
    [script] = secrets["command"]
    # The users of the images are not those of this machine.
    script = re.sub("^chown .*", "", script.replace("/run/secrets/a2a", str(directory / "run")).replace("$$", "$"), flags=re.MULTILINE)

    def make() -> dict[str, str]:
        subprocess.run([*secrets["entrypoint"], script], check=True)
        return {path.name: path.read_text() for path in (directory / "run").iterdir()}

    made = make()
    assert sorted(made) == ["cluster.key", "password", "pgpass", "signing_keys.pem"], made
    assert made["pgpass"] == f"db:5432:a2a:a2a:{made['password']}", made["pgpass"]
    assert make() == made, "a secret was replaced"
    for name, value in environment.items():
        print(f"{name}={value}")


{"compose": compose, "kubernetes": kubernetes, "cluster": cluster}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
