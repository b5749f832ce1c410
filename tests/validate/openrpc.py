"""Checks an OpenRPC document: openrpc.py DOCUMENT META_SCHEMA..., with its meta-schema and those to which that refers."""

import json
import sys

from jsonschema import Draft7Validator
from referencing import Registry
from referencing.jsonschema import DRAFT7

OPENRPC = 'https://meta.open-rpc.org/'

document, *schemas = (json.load(open(path)) for path in sys.argv[1:])
resources = [DRAFT7.create_resource(schema) for schema in schemas]
# References leave out the slash at the end.
resources = [(uri, resource) for resource in resources for uri in {resource.id(), resource.id().rstrip('/')}]
registry = Registry().with_resources(resources)
errors = list(Draft7Validator({'$ref': OPENRPC}, registry=registry).iter_errors(document))
for error in errors:
    print(f'{error.json_path}: {error.message[:300]}')
sys.exit(bool(errors))
