//! Authenticated caller: identity, owner of its tasks, tenant, scopes and claims.

#[cfg(feature = "auth")]
use std::time::Duration;
use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Map, Value};
#[cfg(feature = "server")]
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

#[cfg(feature = "auth")]
use crate::base::clock::{self, Millis};

/// Scope of calls that read tasks.
pub const TASKS_READ: &str = "tasks:read";
/// Scope of calls that create, continue or cancel tasks.
pub const TASKS_WRITE: &str = "tasks:write";
/// Scope of calls that register or delete push notification configurations.
pub const PUSH_WRITE: &str = "push:write";
/// Scope of the extended agent card.
pub const CARD_EXTENDED: &str = "card:extended";
/// Scope of metrics and of the operator API.
pub const ADMIN: &str = "admin";
/// Prefix of the scopes of single skills: `skill:<id>`.
pub const SKILL_PREFIX: &str = "skill:";

/// Authenticated caller. The server adds it to the extensions of a request after [authentication](crate::service::auth::Authenticator), or
/// a layer of the program does.
///
/// ```
/// use a2a_service::auth::{Principal, Scopes};
///
/// let ada = Principal::new("ada").tenant("north").scopes(Scopes::only(["tasks:read"]));
/// assert!(ada.scopes.contains("tasks:read") && !ada.scopes.contains("tasks:write"));
/// assert_eq!(&*ada.owner, "ada");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Principal {
    /// Name of the caller in logs: a user, or a token.
    pub id: Arc<str>,
    /// Owner of the tasks that the principal creates. It sees only tasks of this owner.
    pub owner: Arc<str>,
    /// Tenant of the principal. It can't use another one, and calls without a tenant are for this one. `None`: any tenant.
    pub tenant: Option<Arc<str>>,
    /// Permitted operations.
    pub scopes: Scopes,
    /// Claims about the caller, such as those of a JSON Web Token.
    pub claims: Map<String, Value>,
    /// Validity of the credentials after their check.
    #[cfg(feature = "server")]
    pub(crate) validity: Validity,
}

setters! {
    Principal:
    /// Sets the owner of its tasks, which several principals can share.
    #[must_use]
    pub owner => owner: impl Into<Arc<str>>;

    /// Sets the permitted operations.
    #[must_use]
    pub scopes => scopes: Scopes;

    /// Sets the claims.
    #[must_use]
    pub claims => claims: Map<String, Value>;
}

impl Principal {
    /// Creates a principal that is the owner of its tasks, has all scopes, and is not bound to a tenant.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        let id = name.into();
        Self {
            owner: Arc::clone(&id),
            id,
            tenant: None,
            scopes: Scopes::All,
            claims: Map::new(),
            #[cfg(feature = "server")]
            validity: Validity::default(),
        }
    }

    /// Binds the principal to a tenant.
    #[must_use]
    pub fn tenant(self, tenant: impl Into<Arc<str>>) -> Self {
        Self { tenant: Some(tenant.into()), ..self }
    }
}

/// Validity of credentials after their check: streams and waiting calls end with it. It is not part of the identity of a principal, so
/// that any two are equal.
#[cfg(feature = "server")]
#[derive(Clone, Debug, Default)]
pub(crate) struct Validity {
    /// Time at which the credentials expire.
    expires: Option<Instant>,
    /// True once they are revoked.
    revoked: Vec<watch::Receiver<bool>>,
}

#[cfg(feature = "server")]
impl PartialEq for Validity {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[cfg(feature = "server")]
impl Eq for Validity {}

#[cfg(feature = "server")]
impl Validity {
    /// Creates the validity of credentials that expire at a time, and that are valid until the receiver has `true`.
    #[cfg(feature = "auth")]
    pub(crate) fn new(expires: Option<Millis>, now: Millis, revoked: Option<watch::Receiver<bool>>) -> Self {
        let left = |at: Millis| Duration::from_millis(u64::try_from(at.saturating_sub(now)).unwrap_or_default());
        let expires = expires.map(|at| clock::after(Instant::now(), left(at)));
        Self { expires, revoked: revoked.into_iter().collect() }
    }

    /// Adds the limits of further credentials of the same principal.
    pub(crate) fn restrict(&mut self, other: Self) {
        self.expires = [self.expires, other.expires].into_iter().flatten().min();
        self.revoked.extend(other.revoked);
    }

    /// Returns true if the credentials can become invalid.
    pub(crate) fn is_limited(&self) -> bool {
        self.expires.is_some() || !self.revoked.is_empty()
    }

    /// Time at which the credentials expire. `None`: never.
    pub(crate) fn expires(&self) -> Option<Instant> {
        self.expires
    }

    /// Returns true once the credentials are revoked.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.iter().any(|revoked| *revoked.borrow())
    }

    /// Returns true once the credentials are invalid.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_revoked() || self.expires.is_some_and(|end| end <= Instant::now())
    }

    /// Waits until the credentials are revoked.
    pub(crate) async fn revoked(&self) {
        let waits = self.revoked.iter().map(async |revoked| {
            let mut revoked = revoked.clone();
            // The source of credentials that were not revoked may be dropped.
            if revoked.wait_for(|is_revoked| *is_revoked).await.is_err() {
                std::future::pending::<()>().await;
            }
        });
        let waits: Vec<_> = waits.map(Box::pin).collect();
        if waits.is_empty() {
            return std::future::pending().await;
        }
        futures_util::future::select_all(waits).await;
    }

    /// Waits until the credentials are invalid.
    pub(crate) async fn ended(&self) {
        if self.has_ended() {
            return;
        }
        let expired = async {
            match self.expires {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = expired => {}
            () = self.revoked() => {}
        }
    }
}

/// Permitted operations of a principal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scopes {
    /// All operations.
    #[default]
    All,
    /// Operations of these scopes only.
    Only(BTreeSet<String>),
}

impl Scopes {
    /// Permits the operations of these scopes only.
    pub fn only<T: Into<String>>(scopes: impl IntoIterator<Item = T>) -> Self {
        Self::Only(scopes.into_iter().map(Into::into).collect())
    }

    /// Returns true if the scope is among them.
    pub fn contains(&self, scope: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(scopes) => scopes.contains(scope),
        }
    }

    /// Returns the ids of the skills that messages may be sent to. `None`: all skills.
    pub fn skills(&self) -> Option<Vec<&str>> {
        let Self::Only(scopes) = self else { return None };
        let skills: Vec<&str> = scopes.iter().filter_map(|scope| scope.strip_prefix(SKILL_PREFIX)).collect();
        (!skills.is_empty()).then_some(skills)
    }
}
