//! Push notification configurations: the four methods (3.1.7 to 3.1.10), and what a configuration has to be (4.3).

use std::{fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use reqwest::Url;
use tonic::{Extensions, Request, Response};

use super::{PAGE, PAGES, Service};
use crate::{
    agent::Agent,
    call::Call,
    check::MAX_ID_BYTES,
    error::{Error, ErrorKind},
    pb::{
        v1::{
            DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest,
            ListTaskPushNotificationConfigsRequest, ListTaskPushNotificationConfigsResponse,
            TaskPushNotificationConfig,
        },
        wkt::Empty,
    },
    seam,
    store::PushConfig,
};

/// Where a configuration stands in a send.
pub(super) const IN_SEND: &str = "configuration.taskPushNotificationConfig.";

/// How long each of its texts may be.
const LONGEST: usize = 4096;

/// How much a codec may keep beside it.
const MOST_BESIDE: usize = 16 * 1024;

/// What a caller's version of the protocol says of a configuration and 1.0 has no place for: an extension of the
/// request that registers one, and of the reply that shows one. Only the codecs know what it says.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PushExtra(pub Bytes);

/// The same of each configuration of a list, in their order: an extension of that reply.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AllPushExtras(pub Vec<Bytes>);

/// They may be secrets.
impl fmt::Debug for PushExtra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Beside").finish_non_exhaustive()
    }
}

impl fmt::Debug for AllPushExtras {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Besides").finish_non_exhaustive()
    }
}

impl<A: Agent> Service<A> {
    /// A configuration that is registered, by itself or in a send. `at` is where its fields are in the request.
    pub(super) fn registered(
        &self,
        at: &str,
        mut config: TaskPushNotificationConfig,
        came_with: &Extensions,
    ) -> Result<PushConfig, Error> {
        self.offers.push()?;
        check(at, &config)?;
        let version = came_with.get().map(|it: &Call| it.version).unwrap_or_default();
        let beside = came_with.get().map(|it: &PushExtra| it.0.clone()).unwrap_or_default();
        if beside.len() > MOST_BESIDE {
            let why = format!("has {} bytes beside what 1.0 has of it, of at most {MOST_BESIDE}", beside.len());
            return Err(Error::invalid_field(format!("{at}url"), why));
        }
        if config.id.is_empty() {
            config.id = seam::fresh_id();
        }
        Ok(PushConfig { config, version, beside })
    }

    pub(super) async fn create_push(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Error> {
        self.offers.push()?;
        let TaskPushNotificationConfig { tenant, task_id, .. } = request.get_ref();
        let key = self.key(&request, tenant, task_id)?;
        let (_, came_with, config) = request.into_parts();
        let push = self.registered("", config, &came_with)?;
        let (push, _) = self.execution.put_push(&key, push).await?;
        Ok(shown(&push))
    }

    pub(super) async fn get_push(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Error> {
        self.offers.push()?;
        let GetTaskPushNotificationConfigRequest { tenant, task_id, id } = request.get_ref();
        let key = self.key(&request, tenant, task_id)?;
        let found = self.execution.journal().store().get_push(&key, id).await?;
        // The same whether the task or its configuration is missing, or is somebody else's (13.1).
        let missing = || {
            let why = format!("{task_id}, or it has no push notification configuration {id}");
            ErrorKind::TaskNotFound.because(why).with("taskId", task_id)
        };
        Ok(shown(&found.ok_or_else(missing)?))
    }

    pub(super) async fn list_push(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Error> {
        self.offers.push()?;
        let ListTaskPushNotificationConfigsRequest { tenant, task_id, page_size, page_token } = request.get_ref();
        let key = self.key(&request, tenant, task_id)?;
        let size = if *page_size == 0 { PAGE } else { *page_size };
        let limit = usize::try_from(size).ok().filter(|_| PAGES.contains(&size));
        let limit =
            limit.ok_or_else(|| Error::invalid_field("pageSize", format!("is {size}, and must be 1 to 100")))?;
        let why = "is not a token that was given for this list; begin again without one";
        let after = number(page_token).ok_or_else(|| Error::invalid_field("pageToken", why))?;
        let page = self.execution.journal().store().list_push(&key, after, limit).await?;
        let page = page.ok_or_else(|| Error::task_not_found(task_id))?;
        let mut response = Response::new(ListTaskPushNotificationConfigsResponse {
            configs: page.configs.iter().map(|it| it.config.clone()).collect(),
            next_page_token: page.next.map(token).unwrap_or_default(),
        });
        let besides = page.configs.iter().map(|it| it.beside.clone()).collect();
        response.extensions_mut().insert(AllPushExtras(besides));
        Ok(response)
    }

    pub(super) async fn delete_push(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Error> {
        self.offers.push()?;
        let DeleteTaskPushNotificationConfigRequest { tenant, task_id, id } = request.get_ref();
        let key = self.key(&request, tenant, task_id)?;
        let known = self.execution.journal().store().delete_push(&key, id).await?;
        if known { Ok(Response::new(Empty::default())) } else { Err(Error::task_not_found(task_id)) }
    }
}

/// Why there is nothing of this, where it is not offered.
pub(super) fn no_push() -> Error {
    ErrorKind::PushNotificationNotSupported.because("this agent delivers none; stream or poll the task")
}

/// Whoever may see the task gets the configuration as it was registered.
fn shown(push: &Arc<PushConfig>) -> Response<TaskPushNotificationConfig> {
    let mut response = Response::new(push.config.clone());
    response.extensions_mut().insert(PushExtra(push.beside.clone()));
    response
}

/// Refuses what could not be delivered to, without a word of what may be a secret.
fn check(at: &str, config: &TaskPushNotificationConfig) -> Result<(), Error> {
    let wrong = |field: &str, why: String| Err(Error::invalid_field(format!("{at}{field}"), why));
    let TaskPushNotificationConfig { id, url, token, authentication, .. } = config;
    let empty = String::new();
    let (scheme, credentials) = authentication.as_ref().map_or((&empty, &empty), |it| (&it.scheme, &it.credentials));
    for (field, text, most) in [
        ("id", id, MAX_ID_BYTES),
        ("url", url, LONGEST),
        ("token", token, LONGEST),
        ("authentication.scheme", scheme, LONGEST),
        ("authentication.credentials", credentials, LONGEST),
    ] {
        if text.len() > most {
            return wrong(field, format!("has {} bytes, of at most {most}", text.len()));
        }
        // Each but the id becomes part of a header or of a request line.
        if text.chars().any(char::is_control) {
            return wrong(field, "must not have control characters".to_owned());
        }
    }
    if !is_url(url) {
        return wrong("url", "must be an absolute URL of http or https".to_owned());
    }
    Ok(())
}

/// What is written as an absolute URL, and not only mended into one.
fn is_url(text: &str) -> bool {
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    let known = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let mended = rest.starts_with(['/', '\\']) || text.contains(char::is_whitespace);
    known && !mended && Url::parse(text).is_ok_and(|it| it.has_host())
}

/// What a page comes after, as it is given to a client.
fn token(after: u64) -> String {
    URL_SAFE_NO_PAD.encode(after.to_be_bytes())
}

fn number(token: &str) -> Option<u64> {
    if token.is_empty() {
        return Some(0);
    }
    URL_SAFE_NO_PAD.decode(token).ok()?.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_url() {
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
    fn a_token_is_a_number() {
        assert_eq!(number(&token(7)), Some(7));
        assert_eq!((number(""), number("x"), number("AAAA")), (Some(0), None, None));
    }
}
