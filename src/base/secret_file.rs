//! Files with secrets: private keys, client secrets, hashes of tokens.

use std::{fs, io, path::Path};
#[cfg(any(feature = "signing", feature = "auth"))]
use std::{fs::File, io::Write as _};

#[cfg(any(feature = "signing", feature = "auth"))]
use tempfile::{NamedTempFile, PersistError};

/// Reads a file with a secret, and logs a warning if other users of the system can read it.
///
/// # Errors
/// The file can't be read, is larger than `max` bytes, or is not UTF-8.
pub(crate) fn read_secret(path: &Path, max: u64) -> io::Result<String> {
    let metadata = fs::metadata(path)?;
    if metadata.len() > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("the file is larger than {max} bytes")));
    }
    if is_shared(&metadata) {
        tracing::warn!(
            path = %path.display(),
            "other users of the system can read a file with secrets; run `chmod 600` on it, and replace the secrets"
        );
    }
    fs::read_to_string(path)
}

/// Creates a file that only the user of the process can read.
///
/// # Errors
/// The file exists, or can't be written.
#[cfg(feature = "signing")]
pub(crate) fn create_secret(path: &Path, content: &[u8]) -> io::Result<()> {
    write(path, content, NamedTempFile::persist_noclobber)
}

/// Replaces a file with one that only the user of the process can read, so that a reader sees either content.
///
/// # Errors
/// The file can't be written.
#[cfg(feature = "auth")]
pub(crate) fn replace_secret(path: &Path, content: &[u8]) -> io::Result<()> {
    write(path, content, NamedTempFile::persist)
}

/// Writes a temporary file and persists it, so that a crash leaves no incomplete file.
#[cfg(any(feature = "signing", feature = "auth"))]
fn write<'a>(
    path: &'a Path,
    content: &[u8],
    persist: fn(NamedTempFile, &'a Path) -> Result<File, PersistError>,
) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Created with mode 0600.
    let mut file = tempfile::Builder::new().prefix(".a2a-").tempfile_in(parent)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    persist(file, path).map_err(|error| error.error)?;
    #[cfg(unix)]
    File::open(parent)?.sync_all()?;
    Ok(())
}

#[cfg(unix)]
fn is_shared(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    metadata.permissions().mode() & 0o077 != 0
}

/// Returns false: the permissions are not those of Unix.
#[cfg(not(unix))]
fn is_shared(_: &fs::Metadata) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn files_of_other_permissions_are_shared() {
        let file = NamedTempFile::new().unwrap();
        for (mode, expected) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true), (0o620, true)] {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_shared(&fs::metadata(file.path()).unwrap()), expected, "{mode:o}");
        }
    }
}
