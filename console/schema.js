// Fields of the messages of a stream by number: name and type. Enum values by number. Generated from proto/: `UPDATE=1 cargo test schema` writes it.

export const MESSAGES = {
  'google.protobuf.ListValue': { 1: ['values', 'google.protobuf.Value'] },
  'google.protobuf.Struct': { 1: ['fields', 'google.protobuf.Struct.FieldsEntry'] },
  'google.protobuf.Struct.FieldsEntry': { 1: ['key', 'string'], 2: ['value', 'google.protobuf.Value'] },
  'google.protobuf.Timestamp': { 1: ['seconds', 'int64'], 2: ['nanos', 'int32'] },
  'google.protobuf.Value': { 1: ['null_value', 'google.protobuf.NullValue'], 2: ['number_value', 'double'], 3: ['string_value', 'string'], 4: ['bool_value', 'bool'], 5: ['struct_value', 'google.protobuf.Struct'], 6: ['list_value', 'google.protobuf.ListValue'] },
  'lf.a2a.v1.Artifact': { 1: ['artifact_id', 'string'], 2: ['name', 'string'], 3: ['description', 'string'], 4: ['parts', 'lf.a2a.v1.Part'], 5: ['metadata', 'google.protobuf.Struct'], 6: ['extensions', 'string'] },
  'lf.a2a.v1.Message': { 1: ['message_id', 'string'], 2: ['context_id', 'string'], 3: ['task_id', 'string'], 4: ['role', 'lf.a2a.v1.Role'], 5: ['parts', 'lf.a2a.v1.Part'], 6: ['metadata', 'google.protobuf.Struct'], 7: ['extensions', 'string'], 8: ['reference_task_ids', 'string'] },
  'lf.a2a.v1.Part': { 1: ['text', 'string'], 2: ['raw', 'bytes'], 3: ['url', 'string'], 4: ['data', 'google.protobuf.Value'], 5: ['metadata', 'google.protobuf.Struct'], 6: ['filename', 'string'], 7: ['media_type', 'string'] },
  'lf.a2a.v1.StreamResponse': { 1: ['task', 'lf.a2a.v1.Task'], 2: ['message', 'lf.a2a.v1.Message'], 3: ['status_update', 'lf.a2a.v1.TaskStatusUpdateEvent'], 4: ['artifact_update', 'lf.a2a.v1.TaskArtifactUpdateEvent'] },
  'lf.a2a.v1.Task': { 1: ['id', 'string'], 2: ['context_id', 'string'], 3: ['status', 'lf.a2a.v1.TaskStatus'], 4: ['artifacts', 'lf.a2a.v1.Artifact'], 5: ['history', 'lf.a2a.v1.Message'], 6: ['metadata', 'google.protobuf.Struct'] },
  'lf.a2a.v1.TaskArtifactUpdateEvent': { 1: ['task_id', 'string'], 2: ['context_id', 'string'], 3: ['artifact', 'lf.a2a.v1.Artifact'], 4: ['append', 'bool'], 5: ['last_chunk', 'bool'], 6: ['metadata', 'google.protobuf.Struct'] },
  'lf.a2a.v1.TaskStatus': { 1: ['state', 'lf.a2a.v1.TaskState'], 2: ['message', 'lf.a2a.v1.Message'], 3: ['timestamp', 'google.protobuf.Timestamp'] },
  'lf.a2a.v1.TaskStatusUpdateEvent': { 1: ['task_id', 'string'], 2: ['context_id', 'string'], 3: ['status', 'lf.a2a.v1.TaskStatus'], 4: ['metadata', 'google.protobuf.Struct'] },
};

export const ENUMS = {
  'google.protobuf.NullValue': { 0: 'NULL_VALUE' },
  'lf.a2a.v1.Role': { 0: 'ROLE_UNSPECIFIED', 1: 'ROLE_USER', 2: 'ROLE_AGENT' },
  'lf.a2a.v1.TaskState': { 0: 'TASK_STATE_UNSPECIFIED', 1: 'TASK_STATE_SUBMITTED', 2: 'TASK_STATE_WORKING', 3: 'TASK_STATE_COMPLETED', 4: 'TASK_STATE_FAILED', 5: 'TASK_STATE_CANCELED', 6: 'TASK_STATE_INPUT_REQUIRED', 7: 'TASK_STATE_REJECTED', 8: 'TASK_STATE_AUTH_REQUIRED' },
};
