//! The bytes of files in the messages of 0.3's proto, for callers who take the proto at its word.
//!
//! 0.3 has a file in base64 in its JSON (0.3, 6.6.2), and `bytes` in its proto. The SDKs for Python, and Go's of 0.3, put the
//! base64 there, and read nothing else; those for JavaScript, and Go's of 1.0, put the file itself there, and read nothing
//! else. Which is meant is told by nothing in a request, but for what says that it sent it: [`Call::plain_files`].

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tonic::{Request, Response, Status};

use super::event::Event;
use crate::{
    call::Call,
    pb::v03::{
        Artifact, FilePart, Message, Part, SendMessageRequest, SendMessageResponse, StreamResponse, Task,
        TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent, file_part::File, part::Part as Content,
        send_message_response, stream_response,
    },
};

/// How the caller has the bytes of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileEncoding {
    /// As their base64, which is what the rest of this module's siblings reads and writes.
    Encoded,
    /// As they are.
    Plain,
}

impl FileEncoding {
    /// What the caller of this has.
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        if request.extensions().get::<Call>().is_some_and(|it| it.plain_files) { Self::Plain } else { Self::Encoded }
    }

    /// The same request, with base64.
    pub(super) fn read<T: FileParts>(self, mut request: Request<T>) -> Request<T> {
        if self == Self::Plain {
            // Also what looks like base64 already: nothing is guessed where it is known.
            request.get_mut().each_file(&mut |it| *it = STANDARD.encode(&*it).into());
        }
        request
    }

    /// A reply as the caller has it.
    pub(super) fn reply<T: FileParts>(self, reply: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
        reply.map(|it| it.map(|it| self.write(it)))
    }

    /// A message as the caller has it.
    pub(super) fn write<T: FileParts>(self, mut message: T) -> T {
        if self == Self::Plain {
            message.each_file(&mut |it| {
                if let Ok(bytes) = STANDARD.decode(&*it) {
                    *it = bytes;
                }
            });
        }
        message
    }
}

/// What files are in.
pub(super) trait FileParts {
    /// Does something to the bytes of each.
    fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>));
}

impl<T: FileParts> FileParts for Vec<T> {
    fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
        for it in self {
            it.each_file(change);
        }
    }
}

impl<T: FileParts> FileParts for Option<T> {
    fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
        if let Some(it) = self {
            it.each_file(change);
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

/// Messages, and their members that have files.
macro_rules! within {
    ($($message:ident: $($member:ident),+;)*) => { $(
        impl FileParts for $message {
            fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
                $(self.$member.each_file(change);)+
            }
        }
    )* };
}

within! {
    Artifact: parts;
    Message: content;
    SendMessageRequest: request;
    Task: status, artifacts, history;
    TaskArtifactUpdateEvent: artifact;
    TaskStatus: update;
    TaskStatusUpdateEvent: status;
}

impl FileParts for SendMessageResponse {
    fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
        use send_message_response::Payload;
        match &mut self.payload {
            Some(Payload::Task(it)) => it.each_file(change),
            Some(Payload::Msg(it)) => it.each_file(change),
            None => {}
        }
    }
}

impl FileParts for StreamResponse {
    fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
        use stream_response::Payload;
        match &mut self.payload {
            Some(Payload::Task(it)) => it.each_file(change),
            Some(Payload::Msg(it)) => it.each_file(change),
            Some(Payload::StatusUpdate(it)) => it.each_file(change),
            Some(Payload::ArtifactUpdate(it)) => it.each_file(change),
            None => {}
        }
    }
}

impl FileParts for Event {
    fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
        self.edit(|it| it.each_file(change));
    }
}
