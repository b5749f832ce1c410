// Protobuf in its text format, as `protoc --decode` prints it, by the fields in schema.js. Pure functions.

import { ENUMS, MESSAGES } from './schema.js';

/** Maximum depth of messages in messages, as in other decoders. */
const MAX_DEPTH = 100;

const VARINT = 0;
const FIXED64 = 1;
const LENGTH = 2;
const FIXED32 = 5;

/** Bytes that are no valid message. */
class InvalidProtobuf extends Error {}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Reads the fields of an encoded message. */
class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
  }

  get isAtEnd() {
    return this.at >= this.bytes.length;
  }

  varint() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      if (this.isAtEnd) break;
      const byte = this.bytes[this.at];
      this.at += 1;
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return BigInt.asUintN(64, value);
    }
    throw new InvalidProtobuf(`the number before byte ${this.at} is not complete`);
  }

  take(length) {
    const end = this.at + length;
    if (end > this.bytes.length) throw new InvalidProtobuf(`${length} bytes are expected at byte ${this.at}, and there are ${this.bytes.length - this.at}`);
    const taken = this.bytes.subarray(this.at, end);
    this.at = end;
    return taken;
  }

  double() {
    const at = this.at;
    this.take(8);
    return this.view.getFloat64(at, true);
  }

  /** Returns the value of a field: a `bigint`, or bytes. */
  value(wireType) {
    if (wireType === VARINT) return this.varint();
    if (wireType === LENGTH) return this.take(Number(this.varint()));
    if (wireType === FIXED64) return this.take(8);
    if (wireType === FIXED32) return this.take(4);
    throw new InvalidProtobuf(`there is no wire type ${wireType}, before byte ${this.at}`);
  }
}

const octal = (byte) => `\\${byte.toString(8).padStart(3, '0')}`;
const ESCAPES = { '\n': '\\n', '\r': '\\r', '\t': '\\t', '"': '\\"', '\\': '\\\\' };

/** Quotes text, which stays readable: only control characters, quotes and backslashes are escaped. */
function quotedText(bytes) {
  try {
    return `"${utf8.decode(bytes).replace(/[\0-\x1f"\\\x7f]/g, (char) => ESCAPES[char] ?? octal(char.charCodeAt(0)))}"`;
  } catch {
    return quotedBytes(bytes);
  }
}

function quotedBytes(bytes) {
  const chars = Array.from(bytes, (byte) => (byte < 0x20 || byte > 0x7e ? octal(byte) : String.fromCharCode(byte)));
  return `"${chars.map((char) => (char === '"' || char === '\\' ? `\\${char}` : char)).join('')}"`;
}

function numberText(value) {
  if (Number.isNaN(value)) return 'nan';
  if (!Number.isFinite(value)) return value > 0 ? 'inf' : '-inf';
  return Object.is(value, -0) ? '-0' : String(value);
}

/** Formats a scalar. `undefined`: the wire type is not that of the type, so that the field counts as unknown. */
function scalarText(reader, type, wireType) {
  if (type === 'double' && wireType === FIXED64) return numberText(reader.double());
  if (type === 'string' && wireType === LENGTH) return quotedText(reader.value(LENGTH));
  if (type === 'bytes' && wireType === LENGTH) return quotedBytes(reader.value(LENGTH));
  if (wireType !== VARINT) return undefined;
  if (type === 'bool') return reader.varint() === 0n ? 'false' : 'true';
  if (type === 'int32' || type === 'int64') return String(BigInt.asIntN(64, reader.varint()));
  if (Object.hasOwn(ENUMS, type)) {
    const number = BigInt.asIntN(32, reader.varint());
    return ENUMS[type][number] ?? String(number);
  }
  return undefined;
}

/** Formats a field that the schema does not have, by its number. */
function unknownText(reader, wireType) {
  const value = reader.value(wireType);
  return typeof value === 'bigint' ? String(value) : quotedBytes(value);
}

function writeMessage(reader, fields, indent, lines, depth) {
  if (depth > MAX_DEPTH) throw new InvalidProtobuf(`messages are nested more than ${MAX_DEPTH} times`);
  while (!reader.isAtEnd) {
    const tag = reader.varint();
    const number = Number(tag >> 3n);
    const wireType = Number(tag & 7n);
    const [name, type] = fields[number] ?? [String(number)];
    if (Object.hasOwn(MESSAGES, type ?? '') && wireType === LENGTH) {
      const content = reader.value(LENGTH);
      lines.push(`${indent}${name} {`);
      writeMessage(new Reader(content), MESSAGES[type], `${indent}  `, lines, depth + 1);
      lines.push(`${indent}}`);
    } else {
      const text = scalarText(reader, type, wireType) ?? unknownText(reader, wireType);
      lines.push(`${indent}${name}: ${text}`);
    }
  }
}

/** Returns the text format of an encoded message; a comment at its end says why the rest can't be decoded, if so. */
export function toText(bytes, type = 'lf.a2a.v1.StreamResponse') {
  const lines = [];
  try {
    writeMessage(new Reader(bytes), MESSAGES[type], '', lines, 0);
  } catch (error) {
    if (!(error instanceof InvalidProtobuf)) throw error;
    lines.push(`# ${error.message}`);
  }
  return lines.map((line) => `${line}\n`).join('');
}
