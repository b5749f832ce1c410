import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ENUMS, MESSAGES } from '../../console/schema.js';
import { toText } from '../../console/wire.js';

const varint = (number) => {
  const bytes = [];
  for (let rest = BigInt.asUintN(64, BigInt(number)); ; rest >>= 7n) {
    if (rest < 128n) return [...bytes, Number(rest)];
    bytes.push(Number(rest & 127n) | 128);
  }
};
const number = (field, value) => [...varint(field << 3), ...varint(value)];
const content = (field, bytes) => [...varint((field << 3) | 2), ...varint(bytes.length), ...bytes];
const string = (field, text) => content(field, [...Buffer.from(text)]);
const double = (field, value) => [...varint((field << 3) | 1), ...new Uint8Array(Float64Array.of(value).buffer)];
const text = (bytes, type) => toText(Uint8Array.from(bytes), type);

const PART = 'lf.a2a.v1.Part';
const STATUS = 'lf.a2a.v1.TaskStatus';
const UPDATE = 'lf.a2a.v1.TaskStatusUpdateEvent';
const VALUE = 'google.protobuf.Value';

/** Returns the number of a field. */
function fieldOf(type, name) {
  const [field] = Object.entries(MESSAGES[type]).find(([, [known]]) => known === name);
  return Number(field);
}

test('a status is a message with the names of its fields', () => {
  const timestamp = [...number(1, 1700000000), ...number(2, 5)];
  const status = [...number(fieldOf(STATUS, 'state'), 2), ...content(fieldOf(STATUS, 'timestamp'), timestamp)];
  const update = [...string(fieldOf(UPDATE, 'task_id'), '42'), ...content(fieldOf(UPDATE, 'status'), status)];
  const event = content(fieldOf('lf.a2a.v1.StreamResponse', 'status_update'), update);
  assert.equal(ENUMS['lf.a2a.v1.TaskState'][2], 'TASK_STATE_WORKING');
  const expected = `status_update {
  task_id: "42"
  status {
    state: TASK_STATE_WORKING
    timestamp {
      seconds: 1700000000
      nanos: 5
    }
  }
}
`;
  assert.equal(text(event), expected);
  // The bytes may be a part of a larger buffer.
  const buffer = Uint8Array.from([1, 2, 3, ...event, 4]);
  assert.equal(toText(buffer.subarray(3, 3 + event.length)), expected);
});

test('text is escaped, and stays readable', () => {
  const value = (bytes) => text(content(fieldOf(PART, 'text'), bytes), PART);
  assert.equal(value([...Buffer.from('a"b\\c\n\r\t\0\x1b\x7fü😀\u202e')]), 'text: "a\\"b\\\\c\\n\\r\\t\\000\\033\\177ü😀\u202e"\n');
  assert.equal(value([0xff, 0x41]), 'text: "\\377A"\n', 'invalid UTF-8');
  assert.equal(value([0xef, 0xbb, 0xbf]), 'text: "\ufeff"\n', 'a byte order mark');
});

test('bytes are escaped', () => {
  const raw = text(content(fieldOf(PART, 'raw'), [0, 10, 34, 65, 92, 127, 128, 255]), PART);
  assert.equal(raw, 'raw: "\\000\\012\\"A\\\\\\177\\200\\377"\n');
});

test('numbers have the spelling of the text format', () => {
  for (const [value, expected] of [[1, '1'], [2.5, '2.5'], [1e300, '1e+300'], [-0, '-0'], [NaN, 'nan'], [Infinity, 'inf'], [-Infinity, '-inf']]) {
    assert.equal(text(double(fieldOf(VALUE, 'number_value'), value), VALUE), `number_value: ${expected}\n`);
  }
  assert.equal(text(number(1, -1), 'google.protobuf.Timestamp'), 'seconds: -1\n');
  assert.equal(text(number(1, -(2n ** 63n)), 'google.protobuf.Timestamp'), 'seconds: -9223372036854775808\n');
  assert.equal(text(number(fieldOf(VALUE, 'bool_value'), 1), VALUE), 'bool_value: true\n');
  assert.equal(text(number(fieldOf(VALUE, 'null_value'), 0), VALUE), 'null_value: NULL_VALUE\n');
  assert.equal(text(number(fieldOf(STATUS, 'state'), 77), STATUS), 'state: 77\n', 'an unknown value of an enum');
});

test('a map is a message for each entry', () => {
  const entry = content(1, [...string(1, '__proto__'), ...content(2, string(fieldOf(VALUE, 'string_value'), 'x'))]);
  assert.equal(text(entry, 'google.protobuf.Struct'), 'fields {\n  key: "__proto__"\n  value {\n    string_value: "x"\n  }\n}\n');
});

test('unknown fields have their number', () => {
  const unknown = [...number(99, 300), ...string(98, 'x'), ...double(97, 0), ...varint((96 << 3) | 5), 1, 2, 3, 4];
  assert.equal(text(unknown), '99: 300\n98: "x"\n97: "\\000\\000\\000\\000\\000\\000\\000\\000"\n96: "\\001\\002\\003\\004"\n');
  assert.equal(text(number(1, 5)), 'task: 5\n', 'a wire type that the field does not have');
});

test('bytes that are no message end with a comment', () => {
  assert.equal(text([]), '');
  assert.match(text([0x80]), /^# the number before byte 1 is not complete\n$/);
  assert.match(text([10, 5, 1]), /^# 5 bytes are expected at byte 2, and there are 1\n$/);
  assert.match(text([11]), /^# there is no wire type 3, before byte 1\n$/);
  assert.match(text(Array(11).fill(0xff)), /^# the number/);
  assert.match(text([10, ...varint(2 ** 40)]), /^# 1099511627776 bytes are expected/);
  // A list of a value, deeper than any decoder goes.
  let nested = string(fieldOf(VALUE, 'string_value'), 'x');
  for (let depth = 0; depth < 150; depth += 1) nested = content(fieldOf(VALUE, 'list_value'), content(1, nested));
  assert.match(text(nested, VALUE), /# messages are nested more than 100 times\n$/);
});
