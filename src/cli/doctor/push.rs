//! Check of push notifications, with a receiver of its own.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, extract::DefaultBodyLimit};
use http::{HeaderMap, StatusCode, header};
use tokio::{net::TcpListener, sync::Notify, task::JoinSet, time::timeout};
use url::Url;

use super::{Finding, Outcome, interface::Session, network::is_local};
use crate::{
    base::sources::Ids,
    protocol::{
        call::Call,
        error::Error,
        pb::v1::{SendMessageConfiguration, TaskPushNotificationConfig, send_message_response::Payload},
    },
};

/// Time in which a notification must arrive.
const ARRIVAL: Duration = Duration::from_secs(10);

/// Maximum size of a notification in bytes.
const MAX_BYTES: usize = 4 << 20;

/// Headers that have the token of a notification.
const TOKEN_HEADERS: [&str; 2] = ["a2a-notification-token", "x-a2a-notification-token"];

/// Sends a message with a webhook, and waits for the first notification.
pub(super) async fn check(session: &Session<'_>) -> Outcome {
    let doctor = session.target.doctor;
    let is_here = Url::parse(&session.interface.url).is_ok_and(|url| is_local(&url));
    if !is_here && doctor.push_url.is_none() {
        return Err(Finding::skipped("the agent can't reach this machine: give --push-url and --push-listen"));
    }
    let failed = |error: io::Error| Finding::skipped(format!("{}: {error}", doctor.push_listen));
    let listener = TcpListener::bind(&doctor.push_listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let token = Ids::default().random();
    let (arrived, has_token) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let receive = {
        let (arrived, has_token, token) = (Arc::clone(&arrived), Arc::clone(&has_token), token.clone());
        move |headers: HeaderMap| async move {
            let found = TOKEN_HEADERS.iter().find_map(|name| headers.get(*name));
            let is_own = found.is_some_and(|value| value.as_bytes() == token.as_bytes());
            // A notification with another token is that of an earlier check on this address.
            if is_own || found.is_none() {
                has_token.fetch_or(is_own, Ordering::SeqCst);
                arrived.notify_one();
            }
            // A connection that stays open would take the notifications of the next check.
            (StatusCode::NO_CONTENT, [(header::CONNECTION, "close")])
        }
    };
    let router = Router::new().fallback(receive).layer(DefaultBodyLimit::max(MAX_BYTES));
    // Ends with the check, which may have a time limit, so that the next one can listen at the address.
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await });
    let finding = async {
        let url = doctor.push_url.as_ref().map_or_else(|| format!("http://{address}/"), ToString::to_string);
        let config = TaskPushNotificationConfig {
            id: Ids::default().random(),
            url: url.clone(),
            token,
            tenant: session.interface.tenant.clone(),
            ..TaskPushNotificationConfig::default()
        };
        let configuration = SendMessageConfiguration {
            task_push_notification_config: Some(config),
            return_immediately: true,
            ..SendMessageConfiguration::default()
        };
        let request = Call::default().request(session.message(configuration));
        let sent = session.client.service().send_message(request).await.map_err(|status| {
            let why = format!("the agent does not accept {url}: {}", Error::from(status));
            Finding::warning(why, "allow webhooks at this address for the check (push.allow), or give --push-url")
        })?;
        if let Some(Payload::Task(task)) = sent.into_inner().payload {
            session.record(&task.id);
        }
        timeout(ARRIVAL, arrived.notified()).await.map_err(|_| {
            let why = format!("no notification arrived at {url} within {} s", ARRIVAL.as_secs());
            let remedy = "send notifications to the webhook, or remove capabilities.pushNotifications from the card";
            Finding::failed(why, remedy)
        })?;
        if !has_token.load(Ordering::SeqCst) {
            let remedy = "send the token of the configuration in A2A-Notification-Token";
            return Err(Finding::warning("the notification lacks its token", remedy));
        }
        Ok(Finding::ok("a notification arrived, with its token"))
    };
    let finding = finding.await;
    serving.shutdown().await;
    finding
}
