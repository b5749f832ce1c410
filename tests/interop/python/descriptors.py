"""Compares what is in proto/ with what the installed SDK has of it, element by element: python descriptors.py"""

import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import harness
from google.api import annotations_pb2, field_behavior_pb2
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict

PROTO = Path(__file__).parents[3] / 'proto'
# Where an SDK may have its generated code, and what it is of.
MODULES = {
    'a2a.types.a2a_pb2': 'lf/a2a/v1/a2a.proto',
    'a2a.compat.v0_3.a2a_v0_3_pb2': 'a2a/v1/a2a.proto',
    'a2a.grpc.a2a_pb2': 'a2a/v1/a2a.proto',
}
TYPES = {value: name for name, value in vars(FieldDescriptor).items() if name.startswith('TYPE_')}


def compiled():
    """What is in proto/, as descriptors."""
    pool = DescriptorPool()
    with tempfile.TemporaryDirectory() as out:
        to = [f'-I{PROTO}', '--include_imports', f'--descriptor_set_out={out}/set']
        subprocess.run([sys.executable, '-m', 'grpc_tools.protoc', *to, *set(MODULES.values())], check=True)
        for file in descriptor_pb2.FileDescriptorSet.FromString(Path(out, 'set').read_bytes()).file:
            pool.AddSerializedFile(file.SerializeToString())
    return pool


def elements(file):
    """Each element of a file by its name, with all that is said of it."""
    for name, enum in file.enum_types_by_name.items():
        yield from ((f'{name}.{it.name}', it.number) for it in enum.values)
    for message in file.message_types_by_name.values():
        yield from of_message(message)
    for service in file.services_by_name.values():
        for it in service.methods:
            yield f'{service.name}.{it.name}', {
                'input': it.input_type.full_name,
                'output': it.output_type.full_name,
                'streaming': (it.client_streaming, it.server_streaming),
                'http': MessageToDict(it.GetOptions().Extensions[annotations_pb2.http]),
            }


def of_message(message):
    yield message.full_name, 'message'
    for it in message.fields:
        kind = it.message_type or it.enum_type
        yield f'{message.full_name}.{it.name}', {
            'number': it.number,
            'type': TYPES[it.type],
            'of': kind and kind.full_name,
            'repeated': it.is_repeated,
            'presence': it.has_presence,
            'oneof': it.containing_oneof and it.containing_oneof.name,
            'json': it.json_name,
            'behavior': list(it.GetOptions().Extensions[field_behavior_pb2.field_behavior]),
        }
    for nested in message.nested_types:
        yield from of_message(nested)


async def main():
    pool = compiled()
    for module, path in MODULES.items():
        try:
            theirs = import_module(module).DESCRIPTOR
        except ModuleNotFoundError:
            continue

        async def same():
            ours, want = dict(elements(pool.FindFileByName(path))), dict(elements(theirs))
            assert len(want) > 200, f'only {len(want)} elements'
            different = [it for it in sorted(ours.keys() | want.keys()) if ours.get(it) != want.get(it)]
            lines = [f'{it}:\n  ours   {ours.get(it)}\n  theirs {want.get(it)}' for it in different]
            assert not different, f'{len(different)} of {len(want)} elements differ:\n' + '\n'.join(lines)

        await harness.check(f'a2a-sdk {version("a2a-sdk")} {module} is {path}', same)


harness.run(main)
