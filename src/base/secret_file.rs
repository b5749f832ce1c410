//! Files with secrets and keys: private keys, certificates, client secrets, hashes of tokens.

#[cfg(any(feature = "signing", feature = "auth"))]
use std::io::Write as _;
use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

#[cfg(any(feature = "signing", feature = "auth"))]
use tempfile::{NamedTempFile, PersistError};

/// Reads a file with a secret, and logs a warning if other users of the system can read it.
///
/// # Errors
/// The file is not UTF-8, or can't be read (see [`read_file`]).
pub(crate) fn read_secret(path: &Path, max: u64) -> io::Result<String> {
    let (content, metadata) = read_file(path, max)?;
    if is_shared(&metadata) {
        tracing::warn!(
            path = %path.display(),
            "other users of the system can read a file with secrets; run `chmod 600` on it, and replace the secrets"
        );
    }
    String::from_utf8(content).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is not UTF-8"))
}

/// Reads a file, to which a path may be a symbolic link. A pipe or a device, which could block, is refused.
///
/// # Errors
/// The path is not that of a file, or the file can't be read or is larger than `max` bytes.
pub(crate) fn read_file(path: &Path, max: u64) -> io::Result<(Vec<u8>, fs::Metadata)> {
    let mut options = File::options();
    options.read(true);
    // To open a pipe would wait for its other end.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"));
    }
    let mut content = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut content)?;
    if u64::try_from(content.len()).unwrap_or(u64::MAX) > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("the file is larger than {max} bytes")));
    }
    Ok((content, metadata))
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

/// Returns true if other users of the system can read, write or run a file.
#[cfg(unix)]
pub(crate) fn is_shared(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    metadata.permissions().mode() & 0o077 != 0
}

/// Returns false: the permissions are not those of Unix.
#[cfg(not(unix))]
pub(crate) fn is_shared(_: &fs::Metadata) -> bool {
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

    #[test]
    fn only_regular_files_of_limited_size_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("file"), "sesame").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        assert_eq!(read_secret(&path("link"), 6).unwrap(), "sesame");
        assert_eq!(read_file(&path("file"), 5).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        for refused in [path("pipe"), directory.path().to_owned(), "/dev/zero".into()] {
            assert_eq!(read_file(&refused, 10).unwrap_err().to_string(), "is not a regular file", "{refused:?}");
        }
    }
}
