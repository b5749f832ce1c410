//! Mail: messages and cancels for a task that another replica runs. They are stored for that replica, which commits them like those
//! that it receives itself. The sender finds the outcome by the idempotency key.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};
use prost::Message as _;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{
    COMMIT_WAIT, Execution, PUSH_IN_SEND, SendRequest,
    cluster::{MAX_POLL, MIN_POLL, Ownership, next_poll},
    idempotency::IdempotencyKey,
    limits::{RETRY_AFTER, limit_error},
    outcome_unknown, ownership_changed, task_ended, unavailable,
};
use crate::{
    base::metric,
    engine::journal::{LiveRef, Phase, StoredContexts, TurnContext, TurnReply},
    protocol::{
        error::{Error, ErrorKind},
        event::Seq,
        message::secret::Secrets,
        pb::{
            v1::{Message, Task},
            wkt::Struct,
        },
        rpc::ClearedSecrets,
    },
    store::{Mail, MailKind, Note, Posted, Scope, SharedStore, TaskKey},
};

/// Number of attempts to acquire a task, or to post mail to its runner, while its runner changes.
pub(super) const ATTEMPTS: usize = 5;

/// Route of a message.
pub(super) enum SendRoute {
    /// The message was sent before, or another replica has committed it: its task and event.
    Recorded(TaskKey, Seq),
    /// This process accepts the message: its task, if it was acquired for the message, and its key, if another replica may get a
    /// send with the same one.
    Here(Option<LiveRef>, Option<RepeatedKey>),
}

/// Idempotency key of a send, with its scope and the digest of the message.
pub(super) type RepeatedKey = (Arc<Scope>, Box<str>, [u8; 16]);

/// Content of a mail.
#[derive(Clone, PartialEq, prost::Message)]
struct MailBody {
    /// Message, without secrets.
    #[prost(message, optional, tag = "1")]
    message: Option<Message>,
    /// Context of the message, as it is stored with a task.
    #[prost(string, tag = "2")]
    context: String,
    /// Metadata of a cancel.
    #[prost(message, optional, tag = "3")]
    metadata: Option<Struct>,
    /// Encrypted [`SealedContext`]. Empty without one.
    #[prost(bytes = "vec", tag = "4")]
    sealed: Vec<u8>,
}

/// Parts of a context that are never stored in plain text.
#[derive(Clone, PartialEq, prost::Message)]
struct SealedContext {
    /// Messages with their secret parts.
    #[prost(message, repeated, tag = "1")]
    secrets: Vec<Message>,
    /// Forwarded headers.
    #[prost(message, repeated, tag = "2")]
    forwarded: Vec<SealedHeader>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SealedHeader {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

impl Execution {
    /// Returns whether another process may run the task of a message.
    fn may_be_elsewhere(&self, request: &SendRequest) -> bool {
        self.0.journal.is_shared() && !request.message.task_id.is_empty()
    }

    /// Returns whether a message has to be routed. Otherwise, this process accepts it.
    pub(super) fn needs_route(&self, request: &SendRequest) -> bool {
        request.idempotency_key.is_some() || self.may_be_elsewhere(request)
    }

    /// Routes a message: an earlier send or another replica has recorded it, or this process accepts it.
    pub(super) async fn route(&self, request: &mut SendRequest, left: Option<Duration>) -> Result<SendRoute, Error> {
        if let Some((key, seq)) = self.find_earlier_send(request, left).await? {
            return Ok(SendRoute::Recorded(key, seq));
        }
        let key = request.idempotency_key.as_ref().filter(|_| self.0.journal.is_shared());
        let repeated = key.map(|key| {
            let (key, hash) = key.digest();
            (Arc::clone(&request.scope), key, hash)
        });
        if !self.may_be_elsewhere(request) {
            return Ok(SendRoute::Here(None, repeated));
        }
        self.check_accepting()?;
        let key = TaskKey::new(&request.scope, &request.message.task_id);
        for _ in 0..ATTEMPTS {
            match self.own(&key).await? {
                Ownership::Here(live) => return Ok(SendRoute::Here(Some(live), repeated)),
                Ownership::Elsewhere => {
                    if let Some(seq) = self.post_message(&key, request, left).await? {
                        return Ok(SendRoute::Recorded(key, seq));
                    }
                }
            }
        }
        Err(ownership_changed())
    }

    /// Returns the task and the event of a send that failed because another replica has committed the same one.
    ///
    /// # Errors
    /// The error of the send if that is not so.
    pub(super) async fn find_duplicate(
        &self,
        repeated: Option<RepeatedKey>,
        error: Error,
    ) -> Result<(TaskKey, Seq), Error> {
        let Some((scope, key, hash)) = repeated.filter(|_| error.kind() == ErrorKind::Unavailable) else {
            return Err(error);
        };
        match self.0.journal.store().find_send(&scope, &key).await {
            Ok(Some(sent)) if sent.hash == hash => Ok((TaskKey::new(&scope, &sent.task_id), sent.seq)),
            Ok(_) | Err(_) => Err(error),
        }
    }

    /// Posts a message to the runner of its task, and waits until that has committed it. Returns its event. `None` if the task has
    /// no runner.
    async fn post_message(
        &self,
        key: &TaskKey,
        request: &mut SendRequest,
        left: Option<Duration>,
    ) -> Result<Option<Seq>, Error> {
        let live = self.load(key).await?;
        let message = &mut request.message;
        if !message.context_id.is_empty() && *message.context_id != *live.context {
            let why = format!("task {} is in context {}; send that or none", key.id(), live.context);
            return Err(Error::invalid_field("message.contextId", why));
        }
        (*live.context).clone_into(&mut message.context_id);
        request.context.secrets.take_from(message);
        let (send_key, hash) = match &request.idempotency_key {
            Some(key) => key.digest(),
            None => (format!("mail:{}", self.0.journal.sources().ids.random()).into(), [0; 16]),
        };
        let sealed = self.seal(&request.context, &purpose(key, &send_key))?;
        let created = match request.push.clone() {
            Some(push) => self.put_push(key, *push, request.cleared, PUSH_IN_SEND).await?.1,
            None => None,
        };
        let (message, context) = (Some(request.message.clone()), request.context.encode_all());
        let body = MailBody { message, context, metadata: None, sealed };
        let mail = Mail { kind: MailKind::Message, key: send_key, hash, body: body.encode_to_vec().into() };
        let sent = self.deliver(&live, &mail, &mut request.idempotency_key, left).await;
        if let (Err(_) | Ok(None), Some(id)) = (&sent, created) {
            self.delete_push(key, &id).await?;
        }
        sent
    }

    /// Encrypts the parts of a context that are never stored in plain text. Empty without any.
    fn seal(&self, context: &TurnContext, purpose: &str) -> Result<Vec<u8>, Error> {
        if context.secrets.is_empty() && context.forwarded.is_none() {
            return Ok(Vec::new());
        }
        let header = |(name, value): (&HeaderName, &HeaderValue)| SealedHeader {
            name: name.as_str().to_owned(),
            value: value.as_bytes().to_vec(),
        };
        let forwarded = context.forwarded.iter().flat_map(|headers| headers.iter()).map(header).collect();
        let sealed = SealedContext { secrets: context.secrets.messages().to_vec(), forwarded };
        let sealed = self.0.sealing.get().and_then(|key| key.seal(purpose, sealed.encode_to_vec()));
        let why = "another server runs the task, and gets secrets and forwarded headers only if the servers have a cluster key; \
                   retry once the task waits for its client";
        sealed.ok_or_else(|| unavailable(why))
    }

    /// Decrypts the parts of a context that are never stored in plain text.
    fn open(&self, context: &mut TurnContext, purpose: &str, sealed: Vec<u8>) -> Result<(), Error> {
        if sealed.is_empty() {
            return Ok(());
        }
        let opened = self.0.sealing.get().and_then(|key| key.open(purpose, sealed));
        let opened = opened.and_then(|opened| SealedContext::decode(&*opened).ok());
        let Some(SealedContext { secrets, forwarded }) = opened else {
            return Err(ErrorKind::Internal.because("the servers have different cluster keys"));
        };
        let header = |header: SealedHeader| {
            let mut value = HeaderValue::try_from(header.value).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::try_from(header.name).ok()?, value))
        };
        let headers: HeaderMap = forwarded.into_iter().filter_map(header).collect();
        context.secrets = Secrets::from(secrets);
        context.forwarded = Some(headers).filter(|headers| !headers.is_empty()).map(Arc::new);
        Ok(())
    }

    /// Posts a mail with a message, and waits for its event. The lock of its key ends with the post, because this process may become
    /// the runner that reads the mail.
    async fn deliver(
        &self,
        live: &LiveRef,
        mail: &Mail,
        key: &mut Option<Box<IdempotencyKey>>,
        left: Option<Duration>,
    ) -> Result<Option<Seq>, Error> {
        let (journal, posted) = (&self.0.journal, Instant::now());
        let Some((shared, _)) = journal.shared() else { return Ok(None) };
        let Some(number) = self.post(shared, &live.key, mail).await? else { return Ok(None) };
        drop(key.take());
        let wait = left.map_or(COMMIT_WAIT, |left| left.min(COMMIT_WAIT));
        match timeout(wait, self.wait_for_mail(shared, live, mail, number)).await {
            Ok(seq) => {
                metric::MAIL_WAIT.observe(journal.agent(), &[], posted.elapsed());
                seq.map(Some)
            }
            Err(_) => Err(outcome_unknown().with("taskId", live.key.id())),
        }
    }

    /// Posts a mail, and wakes the runner. Returns its number, zero if its message is committed already. `None` if the task has no
    /// runner.
    async fn post(&self, shared: &dyn SharedStore, key: &TaskKey, mail: &Mail) -> Result<Option<u64>, Error> {
        match shared.post(key, mail).await? {
            Posted::To { runner, number } => {
                shared.wake(Some(runner), Note::Watch(key.clone(), shared.replica()));
                shared.wake(Some(runner), Note::Mail(key.clone()));
                Ok(Some(number))
            }
            Posted::Duplicate { number } => Ok(Some(number.unwrap_or(0))),
            Posted::NoRunner => Ok(None),
            Posted::Ended => Err(task_ended(key.id())),
            Posted::Full => {
                let why = format!("too many messages wait for task {}; retry once it has answered", key.id());
                Err(limit_error("queued_messages", why).retry_after(RETRY_AFTER))
            }
        }
    }

    /// Waits until the runner has committed the message of a mail, or has rejected it. Returns the event of the message.
    async fn wait_for_mail(
        &self,
        shared: &dyn SharedStore,
        live: &LiveRef,
        mail: &Mail,
        number: u64,
    ) -> Result<Seq, Error> {
        let (key, mut wait) = (&live.key, MIN_POLL);
        loop {
            let changed = live.next_change();
            let sent = self.0.journal.store().find_send(key.scope(), &mail.key).await.map_err(|_| outcome_unknown())?;
            match sent {
                Some(sent) if sent.hash == mail.hash => return Ok(sent.seq),
                Some(sent) => return Err(super::idempotency::conflict(&sent.task_id)),
                None => {}
            }
            if number > 0
                && let Some(error) = shared.rejection(key, number).await.map_err(|_| outcome_unknown())?
            {
                return Err(error);
            }
            next_poll(shared, changed, wait).await;
            wait = (wait * 2).min(MAX_POLL);
        }
    }

    /// Posts a cancel to the runner of a task. Returns the task with its end, or a receiver that completes with the end.
    pub(super) async fn cancel_elsewhere(
        &self,
        key: &TaskKey,
        metadata: Option<Box<Struct>>,
    ) -> Result<(LiveRef, Result<Arc<Task>, oneshot::Receiver<TurnReply>>), Error> {
        let Some((shared, _)) = self.0.journal.shared() else { return Err(ownership_changed()) };
        let body = MailBody { metadata: metadata.as_deref().cloned(), ..MailBody::default() };
        let id = format!("cancel:{}", self.0.journal.sources().ids.random());
        let mail = Mail { kind: MailKind::Cancel, key: id.into(), hash: [0; 16], body: body.encode_to_vec().into() };
        for _ in 0..ATTEMPTS {
            let live = match self.post(shared, key, &mail).await {
                Err(error) if error.kind() == ErrorKind::TaskEnded => self.load(key).await?,
                Err(error) => return Err(error),
                Ok(Some(_)) => self.load(key).await?,
                Ok(None) => match self.own(key).await? {
                    Ownership::Elsewhere => continue,
                    Ownership::Here(live) => match live.request_cancel(metadata.clone(), 0) {
                        Some(requested) => return Ok((live, requested)),
                        None => continue,
                    },
                },
            };
            let ended = live.end_or_wait();
            return Ok((live, ended));
        }
        Err(ownership_changed())
    }

    /// Reads the mail of a task that this replica runs, in its order.
    ///
    /// # Errors
    /// Some mail could not be processed now.
    pub(super) async fn read_mail(&self, key: &TaskKey) -> Result<(), Error> {
        let Some((shared, replica)) = self.0.journal.shared() else { return Ok(()) };
        let live = match self.own(key).await {
            Ok(Ownership::Here(live)) => live,
            Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
            // Its runner reads it; or the task is damaged or deleted, which its senders see.
            Ok(Ownership::Elsewhere) | Err(_) => return Ok(()),
        };
        let mut after = live.mail_read();
        loop {
            let all = shared.mail(key, after).await?;
            if all.is_empty() {
                break;
            }
            for (number, mail) in all {
                match self.process(&live, number, mail).await {
                    Ok(()) => {}
                    // The task has another runner, the server stops, or the store is unavailable.
                    Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
                    Err(error) => shared.reject_mail(key, number, &error).await?,
                }
                after = number;
            }
            replica.notify_followers(shared, key);
        }
        // The commit that ended the task has kept its ownership for the mail.
        if let Some((task, at)) = live.committed()
            && task.state().is_terminal()
        {
            // A claim has raised the fence of a task that this replica had followed.
            let change = shared.follow(&[(key.clone(), at)]).await?.into_iter().find_map(|(_, change)| change);
            replica.queue_release(key.clone(), change.map_or(at.fence, |change| change.position.fence));
        }
        Ok(())
    }

    /// Processes a mail.
    async fn process(&self, live: &LiveRef, number: u64, mail: Mail) -> Result<(), Error> {
        let Mail { kind, key: send_key, hash, body } = mail;
        let unreadable = |_| ErrorKind::Internal.because("the mail can't be read");
        let MailBody { message, context, metadata, sealed } = MailBody::decode(body).map_err(unreadable)?;
        if self.0.journal.phase() > Phase::Open {
            return Err(ownership_changed());
        }
        if kind == MailKind::Cancel {
            let requested = live.request_cancel(metadata.map(Box::new), number).ok_or_else(ownership_changed)?;
            // The sender sees the end of the task.
            return requested.err().map(drop).ok_or_else(|| task_ended(live.key.id()));
        }
        let (message, purpose) = (message.unwrap_or_default(), purpose(&live.key, &send_key));
        let mut request = SendRequest {
            scope: Arc::clone(live.key.scope()),
            message,
            context: Box::default(),
            push: None,
            cleared: ClearedSecrets::default(),
            idempotency_key: Some(Box::new(IdempotencyKey::new(send_key, hash))),
            responses: None,
        };
        // A retry of the client may have been accepted here.
        if self.find_earlier_send(&mut request, None).await?.is_some() {
            // The sender finds the record before an error.
            return live.skip_mail(number).then_some(()).ok_or_else(|| task_ended(live.key.id()));
        }
        let referenced = self.0.referenced(&live.key, Some(&request.message)).await?;
        let mut context = StoredContexts::decode(Some(context.as_bytes())).context(0, referenced);
        self.open(&mut context, &purpose, sealed)?;
        if !live.has_ended() {
            self.0.enter_context(live, request.message.encoded_len()).await;
        }
        let message = (request.message, context, request.idempotency_key, number);
        self.add_message(live.clone(), message, None, |_| ()).await.map(drop)
    }
}

/// Returns the purpose of encrypted parts: they can't be moved to another mail.
fn purpose(key: &TaskKey, send_key: &str) -> String {
    let (owner, tenant) = (&key.scope().owner, &key.scope().tenant);
    format!("mail\n{owner}\n{tenant}\n{}\n{send_key}", key.id())
}
