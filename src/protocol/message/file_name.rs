//! Names and media types of files in parts.

use std::{collections::HashSet, path::Path};

/// Maximum length of a file name without its extension, in bytes.
const MAX_NAME: usize = 100;

/// Media types of files by their extensions.
const MEDIA_TYPES: [(&str, &str); 27] = [
    ("txt", "text/plain"),
    ("log", "text/plain"),
    ("md", "text/markdown"),
    ("html", "text/html"),
    ("htm", "text/html"),
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("xml", "application/xml"),
    ("json", "application/json"),
    ("yaml", "application/yaml"),
    ("pdf", "application/pdf"),
    ("zip", "application/zip"),
    ("gz", "application/gzip"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("svg", "image/svg+xml"),
    ("mp3", "audio/mpeg"),
    ("wav", "audio/wav"),
    ("ogg", "audio/ogg"),
    ("mp4", "video/mp4"),
    ("webm", "video/webm"),
    ("js", "text/javascript"),
    ("py", "text/x-python"),
    ("rs", "text/x-rust"),
];

/// Names that Windows reserves for devices.
const RESERVED: [&str; 4] = ["con", "prn", "aux", "nul"];

/// Returns the media type of a file by its extension.
pub(crate) fn media_type_of(path: &Path) -> &'static str {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let known = MEDIA_TYPES.iter().find(|(known, _)| known.eq_ignore_ascii_case(extension));
    known.map_or("application/octet-stream", |(_, media_type)| media_type)
}

/// Returns the usual extension of files with a media type.
#[cfg(feature = "cli")]
pub(crate) fn extension_of(media_type: &str) -> Option<&'static str> {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    let known = MEDIA_TYPES.iter().find(|(_, known)| known.eq_ignore_ascii_case(essence));
    known.map(|(extension, _)| *extension)
}

/// Returns a text as the name of a file: its last path segment, without special characters, hidden files and reserved names.
pub(crate) fn safe_name(text: &str) -> String {
    let last = text.rsplit(['/', '\\']).find(|segment| !segment.is_empty()).unwrap_or_default();
    let is_kept = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ' | '(' | ')' | '+' | '@');
    let name: String = last.chars().map(|c| if is_kept(c) { c } else { '_' }).collect();
    let name = name.trim_start_matches(['.', ' ', '-']).trim_end_matches(['.', ' ']);
    let (stem, extension) = match name.rsplit_once('.') {
        Some((stem, extension)) if extension.len() <= 16 => (stem, format!(".{extension}")),
        _ => (name, String::new()),
    };
    let end = stem.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MAX_NAME).last();
    let stem = stem.get(..end.unwrap_or_default()).unwrap_or_default();
    let device = stem.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let has_number = |name: &str| {
        device.strip_prefix(name).is_some_and(|rest| rest.len() == 1 && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let is_reserved = RESERVED.contains(&&*device) || has_number("com") || has_number("lpt");
    match stem {
        "" => format!("file{extension}"),
        _ if is_reserved => format!("_{stem}{extension}"),
        _ => format!("{stem}{extension}"),
    }
}

/// Adds a number to a name that is taken. Some file systems do not distinguish upper and lower case.
pub(crate) fn unique_name(name: &str, names: &mut HashSet<String>) -> String {
    let (stem, extension) = match name.rsplit_once('.') {
        Some((stem, extension)) => (stem, format!(".{extension}")),
        None => (name, String::new()),
    };
    let numbered = (2..).map(|number| format!("{stem}-{number}{extension}"));
    let mut candidates = std::iter::once(name.to_owned()).chain(numbered);
    candidates.find(|candidate| names.insert(candidate.to_lowercase())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_directory() {
        for (name, expected) in [
            ("report.pdf", "report.pdf"),
            ("../../etc/passwd", "passwd"),
            ("C:\\Windows\\win.ini", "win.ini"),
            ("..", "file"),
            ("/", "file"),
            ("", "file"),
            (".bashrc", "bashrc"),
            ("-rf", "rf"),
            ("a\u{1b}[2J\n\0b.txt", "a__2J__b.txt"),
            ("Übersicht (2).txt", "Übersicht (2).txt"),
            ("nul.txt", "_nul.txt"),
            ("com1", "_com1"),
            ("a:b", "a_b"),
        ] {
            assert_eq!(safe_name(name), expected, "{name}");
        }
        assert_eq!(safe_name(&format!("{}.txt", "ü".repeat(300))).len(), 100 + ".txt".len());
    }
}
