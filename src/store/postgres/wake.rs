//! Notes between replicas, by NOTIFY. PostgreSQL serializes transactions with notifications, so commits have none: notes are collected
//! for some milliseconds, and sent on the connection of other short statements.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    Scope, TaskKey,
    connection::{Connection, Listener, Use},
    options::Settings,
    values::signed,
};
use crate::{
    base::metric,
    store::{Note, ReplicaId},
};

/// Time for which notes are collected.
const FLUSH_DELAY: Duration = Duration::from_millis(5);

/// Number of notes that wait to be sent or received. Further ones are lost.
const MAX_NOTES: usize = 1024;

/// Maximum size of a notification: PostgreSQL accepts less than 8000 bytes.
const MAX_PAYLOAD: usize = 7900;

/// Receiver of the notes of this replica, if there is one.
type Incoming = Arc<Mutex<Option<mpsc::Sender<Note>>>>;

/// Sender and receiver of notes.
pub(super) struct Wakes {
    outgoing: mpsc::Sender<(Option<ReplicaId>, Note)>,
    incoming: Incoming,
    /// Connection that receives the notifications. Opened when the first receiver is.
    listener: OnceLock<Connection>,
    listen: Option<(Settings, MakeRustlsConnect)>,
    /// Beginning of the names of channels, which end with the number of a replica.
    prefix: String,
    replica: watch::Receiver<u64>,
}

impl Wakes {
    /// Creates the sender, which uses a connection of others, and the settings of the receiver.
    pub(super) fn new(
        schema: &str,
        notifies: bool,
        listen: Option<(Settings, MakeRustlsConnect)>,
        sender: Arc<Connection>,
        replica: watch::Receiver<u64>,
    ) -> Self {
        let ((outgoing, notes), prefix) = (mpsc::channel(MAX_NOTES), format!("{}_", schema.trim_matches('"')));
        if notifies {
            tokio::spawn(flush(sender, notes, prefix.clone(), replica.clone()));
        }
        Self { outgoing, incoming: Incoming::default(), listener: OnceLock::new(), listen, prefix, replica }
    }

    pub(super) fn send(&self, to: Option<ReplicaId>, note: Note) {
        // A replica without a note polls.
        _ = self.outgoing.try_send((to, note));
    }

    /// Sends a note at once. A replica that does not get it finds out later.
    pub(super) async fn send_now(&self, connection: &Connection, to: ReplicaId, note: &Note) {
        let (channel, payloads) = (format!("{}{to}", self.prefix), payloads_of(&[encode(note)]));
        _ = connection.query("SELECT pg_notify($1, unnest($2::text[]))", &[&channel, &payloads]).await;
    }

    pub(super) fn receive(&self) -> mpsc::Receiver<Note> {
        let (sender, receiver) = mpsc::channel(MAX_NOTES);
        *self.incoming.lock() = Some(sender);
        if let Some((settings, tls)) = &self.listen {
            self.listener.get_or_init(|| Connection::open(settings, tls, Use::Notifications(self.listener())));
        }
        receiver
    }

    fn listener(&self) -> Listener {
        let incoming = Arc::clone(&self.incoming);
        let receive = move |payload: &str| {
            let notes = serde_json::from_str::<Vec<Value>>(payload).unwrap_or_default();
            if let Some(sender) = &*incoming.lock() {
                for note in notes.iter().filter_map(decode) {
                    _ = sender.try_send(note);
                }
            }
        };
        Listener { prefix: self.prefix.clone(), replica: self.replica.clone(), receive: Arc::new(receive) }
    }

    /// Connection that receives the notifications, if there is one.
    pub(super) fn connection(&self) -> Option<&Connection> {
        self.listener.get()
    }

    /// Ends the receiver.
    pub(super) fn close(&self) {
        *self.incoming.lock() = None;
    }
}

/// Sends notes until the store is dropped.
async fn flush(
    connection: Arc<Connection>,
    mut notes: mpsc::Receiver<(Option<ReplicaId>, Note)>,
    prefix: String,
    replica: watch::Receiver<u64>,
) {
    let mut collected: BTreeMap<Option<ReplicaId>, Vec<Value>> = BTreeMap::new();
    while let Some((to, note)) = notes.recv().await {
        collected.entry(to).or_default().push(encode(&note));
        let collect = async {
            while let Some((to, note)) = notes.recv().await {
                let waiting = collected.entry(to).or_default();
                let note = encode(&note);
                if !waiting.contains(&note) {
                    waiting.push(note);
                }
            }
        };
        _ = timeout(FLUSH_DELAY, collect).await;
        let count = collected.values().map(Vec::len).sum::<usize>();
        metric::WAKE_NOTES.observe(None, &[], metric::number(count));
        let (mut ids, mut payloads) = (Vec::new(), Vec::new());
        for (to, notes) in std::mem::take(&mut collected) {
            for payload in payloads_of(&notes) {
                ids.push(to.map(|id| signed(id.0)));
                payloads.push(payload);
            }
        }
        // Without a destination: the next replica in the order of ids.
        let sql = "SELECT pg_notify($3::text || id, payload) FROM (
                SELECT coalesce(u.id, (SELECT r.id FROM @replica r WHERE NOT r.dead AND NOT r.draining AND r.id <> $4
                    ORDER BY r.id < $4, r.id LIMIT 1)) AS id, u.payload
                FROM unnest($1::int8[], $2::text[]) u(id, payload)
            ) notes WHERE id IS NOT NULL";
        let me = signed(*replica.borrow());
        if let Err(failure) = connection.query(sql, &[&ids, &payloads, &prefix, &me]).await {
            tracing::debug!(error.cause = %failure, "notes to other replicas lost");
        }
    }
}

/// Splits notes into notifications. One that is too long is lost.
fn payloads_of(notes: &[Value]) -> Vec<String> {
    let mut payloads: Vec<String> = Vec::new();
    for note in notes.iter().map(Value::to_string).filter(|note| note.len() + 2 <= MAX_PAYLOAD) {
        match payloads.last_mut().filter(|last| last.len() + note.len() + 2 <= MAX_PAYLOAD) {
            Some(last) => {
                last.push(',');
                last.push_str(&note);
            }
            None => payloads.push(format!("[{note}")),
        }
    }
    payloads.into_iter().map(|payload| payload + "]").collect()
}

fn encode(note: &Note) -> Value {
    let parts = |kind: &str, key: &TaskKey| json!([kind, &*key.scope().owner, &*key.scope().tenant, key.id()]);
    match note {
        Note::Mail(key) => parts("mail", key),
        Note::Watch(key, replica) => json!(["watch", &*key.scope().owner, &*key.scope().tenant, key.id(), replica.0]),
        Note::Progress(key) => parts("progress", key),
        Note::Free => json!(["free"]),
    }
}

fn decode(note: &Value) -> Option<Note> {
    let text = |n: usize| note.get(n)?.as_str();
    let key = || {
        let scope = Scope { owner: text(1)?.into(), tenant: text(2)?.into() };
        Some(TaskKey::new(&Arc::new(scope), text(3)?))
    };
    match text(0)? {
        "mail" => Some(Note::Mail(key()?)),
        "watch" => Some(Note::Watch(key()?, ReplicaId(note.get(4)?.as_u64()?))),
        "progress" => Some(Note::Progress(key()?)),
        "free" => Some(Note::Free),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_split_into_notifications() {
        let key = |id: &str| TaskKey::new(&Arc::new(Scope { owner: "ada\0".into(), tenant: "blue".into() }), id);
        let long = "x".repeat(3000);
        let notes =
            [Note::Mail(key("t-1")), Note::Watch(key(&long), ReplicaId(7)), Note::Progress(key(&long)), Note::Free];
        let mut encoded: Vec<_> = notes.iter().map(encode).collect();
        encoded.insert(1, encode(&Note::Mail(key(&"x".repeat(8000)))));
        encoded.insert(2, encode(&notes[1]));
        let payloads = payloads_of(&encoded);
        assert!(payloads.len() == 2 && payloads.iter().all(|payload| payload.len() <= MAX_PAYLOAD));
        let values = payloads.iter().flat_map(|payload| serde_json::from_str::<Vec<Value>>(payload).unwrap());
        let mut decoded: Vec<_> = values.filter_map(|note| decode(&note)).collect();
        assert_eq!(decoded.remove(1), notes[1]);
        assert_eq!(decoded, notes);
    }
}
