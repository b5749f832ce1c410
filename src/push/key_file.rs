//! File with the signing keys of a server: read, or generated at the first start.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use super::SigningKeys;
use crate::base::{
    jws::{Algorithm, KeyError, MAX_KEY_FILE, SigningKey},
    secret_file::read_secret,
};

/// Reason why the signing keys of a file can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct KeyFileError {
    path: PathBuf,
    source: KeyFileCause,
}

#[derive(Debug, thiserror::Error)]
enum KeyFileCause {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Key(#[from] KeyError),
}

impl SigningKeys {
    /// Reads private keys from a file in PKCS#8 PEM; the first one signs. Logs a warning if other users of the system can
    /// read the file. Blocks.
    ///
    /// # Errors
    /// The file can't be read, is larger than 1 MiB, or [`from_pem`](Self::from_pem) fails.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        read(path).map_err(|source| KeyFileError { path: path.to_owned(), source })
    }

    /// Reads private keys from a file as [`read`](Self::read), or generates a key for ES256 and creates the file if there is
    /// none. Only the user of the process can read the new file. An existing file is never changed. Blocks.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and failures to generate the key or to write the file.
    pub fn read_or_generate(path: &Path) -> Result<Self, KeyFileError> {
        let error = |source| KeyFileError { path: path.to_owned(), source };
        match read(path) {
            Err(KeyFileCause::Io(missing)) if missing.kind() == io::ErrorKind::NotFound => {}
            result => return result.map_err(error),
        }
        match generate(path) {
            // Another process was faster.
            Err(KeyFileCause::Io(exists)) if exists.kind() == io::ErrorKind::AlreadyExists => Self::read(path),
            Ok(keys) => {
                tracing::info!(path = %path.display(), key.id = keys.all().next().map(SigningKey::id), "signing key generated");
                Ok(keys)
            }
            Err(source) => Err(error(source)),
        }
    }
}

fn read(path: &Path) -> Result<SigningKeys, KeyFileCause> {
    let pem = read_secret(path, MAX_KEY_FILE)?;
    Ok(SigningKeys::from_pem(&pem)?)
}

/// Generates a key and writes it to a new file: to a temporary one first, so that a crash leaves no incomplete file.
fn generate(path: &Path) -> Result<SigningKeys, KeyFileCause> {
    let keys = SigningKeys::generate(Algorithm::Es256)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Created with mode 0600.
    let mut file = tempfile::Builder::new().prefix(".a2a-keys-").tempfile_in(parent)?;
    file.write_all(keys.to_pem()?.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    #[cfg(unix)]
    fs::File::open(parent)?.sync_all()?;
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_generated_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a2a.db.keys.pem");
        assert!(SigningKeys::read(&path).unwrap_err().to_string().contains("a2a.db.keys.pem"));
        let generated = SigningKeys::read_or_generate(&path).unwrap();
        let content = fs::read(&path).unwrap();
        for read in [SigningKeys::read_or_generate(&path).unwrap(), SigningKeys::read(&path).unwrap()] {
            assert_eq!(read.jwks(), generated.jwks());
        }
        assert_eq!(fs::read(&path).unwrap(), content);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
        assert!(generate(&path).is_err(), "an existing file is not replaced");
        assert_eq!(fs::read(&path).unwrap(), content);
    }

    #[test]
    fn several_servers_that_start_together_have_one_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.pem");
        let start = || {
            std::thread::spawn({
                let path = path.clone();
                move || SigningKeys::read_or_generate(&path).unwrap().jwks()
            })
        };
        let started: Vec<_> = (0..8).map(|_| start()).collect();
        let keys: Vec<_> = started.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(keys.iter().all(|one| *one == keys[0]), "{keys:?}");
    }

    #[test]
    fn unusable_files_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        for content in ["", "no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            let path = directory.path().join("keys.pem");
            fs::write(&path, content).unwrap();
            assert!(SigningKeys::read_or_generate(&path).is_err(), "{content}");
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        let missing = directory.path().join("missing/keys.pem");
        assert!(SigningKeys::read_or_generate(&missing).unwrap_err().to_string().contains("missing"));
    }

    #[cfg(unix)]
    #[test]
    fn only_the_user_of_the_process_can_read_a_new_file() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.pem");
        SigningKeys::read_or_generate(&path).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        for shared in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(shared)).unwrap();
            SigningKeys::read(&path).unwrap();
        }
    }
}
