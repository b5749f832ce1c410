//! Credential: a secret text, which is read again when its file changes.

#[cfg(feature = "cli")]
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(feature = "cli")]
use super::watched_file::WatchedFiles;

/// Secret text, such as a token. `Debug` does not show it.
///
/// ```
/// use a2a_service::adapter::{Credential, HttpOptions};
///
/// let options = HttpOptions::default().token(Some(Credential::from("secret")));
/// ```
#[derive(Clone)]
pub struct Credential(Source);

#[derive(Clone)]
enum Source {
    Text(Arc<String>),
    #[cfg(feature = "cli")]
    File(WatchedFiles<String>),
}

impl Credential {
    /// Reads the credential from a file, and again within a second after it changes. Blocks.
    #[cfg(feature = "cli")]
    pub(crate) fn in_file(path: &str, read: fn(&Path) -> Result<String, String>) -> Result<Self, String> {
        let (file, path) = (PathBuf::from(path), path.to_owned());
        let log = move |result: Result<&String, &str>| match result {
            Ok(_) => tracing::info!(path, "file with a credential read again"),
            Err(reason) => tracing::error!(path, reason, "credential can't be read; the one before stays in use"),
        };
        let files = WatchedFiles::open(vec![file.clone()], move || read(&file), log);
        Ok(Self(Source::File(files?)))
    }

    /// Returns the text, after a check for changes of its file.
    pub(crate) async fn current(&self) -> Arc<String> {
        #[cfg(feature = "cli")]
        if let Source::File(file) = &self.0 {
            file.value().await;
        }
        self.latest()
    }

    /// Returns the text as it was read last.
    pub(crate) fn latest(&self) -> Arc<String> {
        match &self.0 {
            Source::Text(text) => Arc::clone(text),
            #[cfg(feature = "cli")]
            Source::File(file) => file.current(),
        }
    }
}

conversions! {
    Credential:
    text: String => Self(Source::Text(Arc::new(text)));
    text: &str => text.to_owned().into();
}

debug_fields!(Credential {});
