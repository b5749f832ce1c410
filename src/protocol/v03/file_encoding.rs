//! Encoding of file contents in the `bytes` field of `a2a.v1` messages: base64 text or raw bytes.
//!
//! 0.3 has base64 text in its JSON (6.6.2) and a `bytes` field in its proto. The Python SDKs and the 0.3 Go SDK put the base64
//! text into that field and accept nothing else. The JavaScript SDKs and the 1.0 Go SDK put the raw bytes there and accept
//! nothing else. A message does not tell which is meant, so the client's SDK decides: [`Call::plain_files`].

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tonic::{Request, Response, Status};

use super::event::Event;
use crate::protocol::{
    call::Call,
    pb::v03::{
        Artifact, FilePart, Message, Part, SendMessageRequest, SendMessageResponse, StreamResponse, Task,
        TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent, file_part::File, part::Part as Content,
        send_message_response, stream_response,
    },
};

/// Encoding of file contents that the client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileEncoding {
    /// Base64 text, which the conversions to and from 1.0 expect.
    Encoded,
    /// Raw bytes.
    Plain,
}

impl FileEncoding {
    /// Returns the encoding that the client of this request uses.
    pub(crate) fn of<T>(request: &Request<T>) -> Self {
        if request.extensions().get::<Call>().is_some_and(|call| call.plain_files) {
            Self::Plain
        } else {
            Self::Encoded
        }
    }

    /// Converts the file contents of a request to base64 text.
    pub(crate) fn read<T: FileParts>(self, mut request: Request<T>) -> Request<T> {
        if self == Self::Plain {
            // Encodes contents that look like base64 too: the encoding is known, so there is no need to guess.
            request.get_mut().each_file(&mut |content| *content = STANDARD.encode(&*content).into());
        }
        request
    }

    /// Converts the file contents of a response to the client's encoding.
    pub(crate) fn reply<T: FileParts>(self, reply: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
        reply.map(|response| response.map(|message| self.write(message)))
    }

    /// Converts the file contents of a message to the client's encoding.
    pub(crate) fn write<T: FileParts>(self, mut message: T) -> T {
        if self == Self::Plain {
            message.each_file(&mut |content| {
                if let Ok(bytes) = STANDARD.decode(&*content) {
                    *content = bytes;
                }
            });
        }
        message
    }
}

/// Message of `a2a.v1` that may contain files.
pub(crate) trait FileParts {
    /// Applies `change` to the contents of each file.
    fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>));
}

impl<T: FileParts> FileParts for Vec<T> {
    fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
        for item in self {
            item.each_file(change);
        }
    }
}

impl<T: FileParts> FileParts for Option<T> {
    fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
        if let Some(value) = self {
            value.each_file(change);
        }
    }
}

impl FileParts for Part {
    fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
        if let Some(Content::File(FilePart { file: Some(File::FileWithBytes(bytes)), .. })) = &mut self.part {
            change(bytes);
        }
    }
}

/// Implements [`FileParts`] for messages by visiting the given fields.
macro_rules! has_files {
    ($($message:ident: $($member:ident),+;)*) => { $(
        impl FileParts for $message {
            fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
                $(self.$member.each_file(change);)+
            }
        }
    )* };
}

has_files! {
    Artifact: parts;
    Message: content;
    SendMessageRequest: request;
    SendMessageResponse: payload;
    StreamResponse: payload;
    Task: status, artifacts, history;
    TaskArtifactUpdateEvent: artifact;
    TaskStatus: update;
    TaskStatusUpdateEvent: status;
}

/// Implements [`FileParts`] for oneofs.
macro_rules! has_files_in_each {
    ($($oneof:ty: $($arm:ident)+;)*) => { $(
        impl FileParts for $oneof {
            fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
                match self { $(Self::$arm(message) => message.each_file(change),)+ }
            }
        }
    )* };
}

has_files_in_each! {
    send_message_response::Payload: Task Msg;
    stream_response::Payload: Task Msg StatusUpdate ArtifactUpdate;
}

impl FileParts for Event {
    fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
        self.edit(|message| message.each_file(change));
    }
}
