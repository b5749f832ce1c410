//! Push notification configurations: the four RPCs (3.1.7 to 3.1.10), and validation of a configuration (4.3).

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use tonic::{Extensions, Request, Response};
use url::Url;

use super::Service;
use crate::{
    engine::execution::{PUSH_IN_SEND, SendRequest, store_full},
    protocol::{
        call::{AllPushExtras, Call, OwnerPermit, PushExtra},
        error::Error,
        pb::v1::{ListTaskPushNotificationConfigsResponse, TaskPushNotificationConfig},
        validate::MAX_ID_BYTES,
    },
    store::{PushConfig, PushPage, Scope, TaskKey},
};

/// Maximum length of each text field in bytes, except for the id.
const MAX_TEXT_BYTES: usize = 4096;

/// Maximum size of [`PushExtra`] in bytes.
const MAX_EXTRA_BYTES: usize = 16 * 1024;

impl Service {
    /// Admits a call about the push configurations of a task. Returns its permit, and the key of the task.
    pub(super) fn push_call<T>(
        &self,
        request: &Request<T>,
        tenant: &str,
        task_id: &str,
    ) -> Result<(OwnerPermit, TaskKey), Error> {
        let permit = self.calls.unary(Call::of(request)?)?;
        self.offers.push()?;
        Ok((permit, self.key(request, tenant, task_id)?))
    }

    /// Validates a configuration of a request, which is created by itself or with a send. `prefix` is the path of its fields in
    /// the request.
    pub(super) fn registered(
        &self,
        prefix: &str,
        mut config: TaskPushNotificationConfig,
        extensions: &Extensions,
    ) -> Result<PushConfig, Error> {
        self.offers.push()?;
        check(prefix, &config)?;
        let version = extensions.get().map(|call: &Call| call.version).unwrap_or_default();
        let beside = extensions.get().map(|extra: &PushExtra| extra.0.clone()).unwrap_or_default();
        if beside.len() > MAX_EXTRA_BYTES {
            let why =
                format!("{} bytes of fields besides those of 1.0 exceed the limit of {MAX_EXTRA_BYTES}", beside.len());
            return Err(Error::invalid_field(format!("{prefix}url"), why));
        }
        if config.id.is_empty() {
            config.id = self.execution.journal().sources().ids.time_ordered();
        }
        Ok(PushConfig { config, version, extra: beside })
    }

    /// Checks that notifications may be sent to the target of a configuration.
    #[cfg_attr(not(feature = "push"), expect(clippy::unused_async, reason = "there are no notifications"))]
    pub(super) async fn check_target(&self, scope: &Scope, prefix: &str, push: &PushConfig) -> Result<(), Error> {
        #[cfg(feature = "push")]
        if let Some(delivery) = &self.delivery {
            return delivery.sender().check(&scope.owner, prefix, push).await;
        }
        #[cfg(not(feature = "push"))]
        let _ = (scope, prefix, push);
        Ok(())
    }

    /// Checks a configuration of a send. A repeated send registers none, and is not rejected.
    pub(super) async fn check_push_in_send(&self, send: &SendRequest) -> Result<(), Error> {
        let Some(push) = &send.push else { return Ok(()) };
        match self.check_new_push(send, push).await {
            Err(error) if !self.execution.is_repeated(send).await? => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Checks a configuration of a new message: its target, and the quota of the owner if the task is new.
    async fn check_new_push(&self, send: &SendRequest, push: &PushConfig) -> Result<(), Error> {
        self.check_target(&send.scope, PUSH_IN_SEND, push).await?;
        if send.message.task_id.is_empty() {
            let store = self.execution.journal().store();
            store.check_push_capacity(&send.scope).await?.map_err(store_full)?;
        }
        Ok(())
    }
}

/// Returns the response with a configuration, without its secrets.
pub(super) fn response(push: &PushConfig) -> Response<TaskPushNotificationConfig> {
    let mut response = Response::new(push.public_config());
    response.extensions_mut().insert(PushExtra(push.extra.clone()));
    response
}

/// Returns the response with a page of configurations, without their secrets.
pub(super) fn page(page: &PushPage) -> Response<ListTaskPushNotificationConfigsResponse> {
    let mut response = Response::new(ListTaskPushNotificationConfigsResponse {
        configs: page.configs.iter().map(|push| push.public_config()).collect(),
        next_page_token: page.next.map(format_token).unwrap_or_default(),
    });
    let extras = page.configs.iter().map(|push| PushExtra(push.extra.clone())).collect();
    response.extensions_mut().insert(AllPushExtras(extras));
    response
}

/// Checks that notifications could be sent with a configuration. Errors do not contain values, which may be secrets.
fn check(prefix: &str, config: &TaskPushNotificationConfig) -> Result<(), Error> {
    let invalid = |field: &str, why: String| Err(Error::invalid_field(format!("{prefix}{field}"), why));
    let TaskPushNotificationConfig { id, url, token, authentication, .. } = config;
    let empty = String::new();
    let (scheme, credentials) =
        authentication.as_ref().map_or((&empty, &empty), |info| (&info.scheme, &info.credentials));
    for (field, text, max) in [
        ("id", id, MAX_ID_BYTES),
        ("url", url, MAX_TEXT_BYTES),
        ("token", token, MAX_TEXT_BYTES),
        ("authentication.scheme", scheme, MAX_TEXT_BYTES),
        ("authentication.credentials", credentials, MAX_TEXT_BYTES),
    ] {
        if text.len() > max {
            return invalid(field, format!("{} bytes exceed the limit of {max}", text.len()));
        }
        // All except the id become part of a header or of a request line.
        if text.chars().any(char::is_control) {
            return invalid(field, "must not have control characters".to_owned());
        }
    }
    if !is_url(url) {
        return invalid("url", "must be an absolute URL with http or https".to_owned());
    }
    Ok(())
}

/// Returns true for an absolute URL of HTTP. Rejects text that the URL parser would only repair into one.
fn is_url(text: &str) -> bool {
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    let is_http = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let needs_repair = rest.starts_with(['/', '\\']) || text.contains(char::is_whitespace);
    is_http && !needs_repair && Url::parse(text).is_ok_and(|url| url.has_host())
}

/// Formats the page token of the position after which a page begins.
fn format_token(after: u64) -> String {
    URL_SAFE_NO_PAD.encode(after.to_be_bytes())
}

/// Parses a page token. An empty one is the beginning.
pub(super) fn parse_token(token: &str) -> Option<u64> {
    if token.is_empty() {
        return Some(0);
    }
    URL_SAFE_NO_PAD.decode(token).ok()?.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_http_urls_are_accepted() {
        for text in
            ["http://h", "https://a.example:8443/hook?x=1", "HTTPS://[::1]/", "http://ü.example/", "http://u:p@h/"]
        {
            assert!(is_url(text), "{text}");
        }
        for text in [
            "",
            "h",
            "/hook",
            "//h/hook",
            "ftp://h",
            "http:h",
            "http:/h",
            "http://",
            "https:///h",
            "http://h:99999",
            " http://h",
            "http://a b",
        ] {
            assert!(!is_url(text), "{text}");
        }
    }

    #[test]
    fn page_tokens_round_trip() {
        assert_eq!(parse_token(&format_token(7)), Some(7));
        assert_eq!((parse_token(""), parse_token("x"), parse_token("AAAA")), (Some(0), None, None));
    }
}
