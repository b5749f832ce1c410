//! Tests of parsing, rejecting and printing each type of value.

use std::time::Duration;

use super::*;
use crate::store::sqlite::Durability;

#[test]
fn durations_are_numbers_with_units() {
    for (text, millis, printed) in [
        ("500ms", 500, "500ms"),
        ("0s", 0, "0s"),
        ("90s", 90_000, "90s"),
        ("1h30m", 5_400_000, "90m"),
        ("24h", 86_400_000, "1d"),
    ] {
        let read = Duration::read(text).unwrap();
        assert_eq!(read, Duration::from_millis(millis), "{text}");
        assert_eq!(read.show().unwrap(), format!("\"{printed}\""));
    }
    for text in ["", "5", "s", "-1s", "1.5s", "1 s", "1w", "5s3", "99999999999999999999s", "9999999999999999999d"] {
        assert!(Duration::read(text).unwrap_err().contains("10s"), "{text}");
    }
}

#[test]
fn sizes_are_numbers_with_optional_units() {
    for (text, bytes, printed) in [
        ("65536", 65_536, "\"64KiB\""),
        ("1MiB", 1 << 20, "\"1MiB\""),
        ("3MB", 3_000_000, "3000000"),
        ("7B", 7, "7"),
        ("0", 0, "0"),
    ] {
        let read = ByteSize::read(text).unwrap();
        assert_eq!((read, read.show().unwrap()), (ByteSize(bytes), printed.to_owned()), "{text}");
    }
    for text in ["", "MiB", "1mib", "1.5MiB", "-1", "99999999999999999999", "99999999999999GiB"] {
        assert!(ByteSize::read(text).unwrap_err().contains("1MiB"), "{text}");
    }
}

#[test]
fn stores_are_memory_or_a_file() {
    for text in ["memory", "sqlite:a2a.db", "sqlite:C:\\a b\\a2a.db"] {
        let read = StorePath::read(text).unwrap();
        let printed = read.show().unwrap();
        assert_eq!(StorePath::from_toml(&DeValue::parse(&printed).unwrap()), Ok(read), "{printed}");
    }
    for text in ["", "sqlite", "sqlite:", "memory:", "a2a.db", "postgres://a"] {
        assert!(StorePath::read(text).unwrap_err().ends_with("is not `memory` or `sqlite:PATH`"), "{text}");
    }
    assert_eq!(Durability::read("power"), Ok(Durability::Power));
    assert!(Durability::read("full").unwrap_err().contains("`power`"));
}

#[test]
fn base_urls_have_a_host_and_no_query() {
    for text in ["http://a", "https://a.example:81/below/", "http://[::1]:8"] {
        assert_eq!(BaseUrl::read(text).unwrap().0, text);
    }
    for text in ["", "a.example", "ftp://a", "/path", "http://a?b", "https://a#b"] {
        assert!(BaseUrl::read(text).is_err(), "{text}");
    }
}

#[test]
fn lists_are_arrays_or_separated_by_commas() {
    let read = Vec::<Network>::read("10.0.0.0/8, ::1").unwrap();
    assert_eq!(read.show().unwrap(), r#"["10.0.0.0/8", "::1/128"]"#);
    let value = DeValue::parse(r#"["10.0.0.0/8", "::1"]"#).unwrap();
    assert_eq!(Vec::<Network>::from_toml(&value), Ok(read));
    let value = DeValue::parse(r#""10.0.0.0/8""#).unwrap();
    assert_eq!(Vec::<Network>::from_toml(&value).unwrap_err(), "string is not a list of type network");
}

#[test]
fn unsupported_versions_are_rejected() {
    let read = Protocols::read("0.3, 1.0.1").unwrap();
    assert_eq!((read, read.show().unwrap()), (Protocols::default(), r#"["1.0", "0.3"]"#.to_owned()));
    let value = DeValue::parse(r#"["0.3"]"#).unwrap();
    assert_eq!(Protocols::from_toml(&value).unwrap().show().unwrap(), r#"["0.3"]"#);
    assert_eq!(Protocols::read("2.0").unwrap_err(), "`2.0` is not a supported protocol version; write 1.0 or 0.3");
    for empty in ["", " , "] {
        assert!(Protocols::read(empty).unwrap_err().contains("is empty"), "{empty}");
    }
}

#[test]
fn structures_are_toml_in_text_too() {
    type Skills = Structure<Vec<crate::card::SkillConfig>>;
    let text = r#"[{ "description" = "d", "id" = "i", "name" = "n", "tags" = ["a", "b"] }]"#;
    let read = Skills::read(text).unwrap();
    assert_eq!((&*read.value[0].id, &*read.show().unwrap()), ("i", text));
    let error = Skills::read(r#"[{ id = "i", nmae = "n" }]"#).unwrap_err();
    assert!(error.contains("nmae"), "{error}");
}

#[test]
fn quoted_text_parses_as_toml() {
    let text = "a \"quoted\" \\ name\nin lines\u{7}";
    let document = format!("name = {}", quoted(&text));
    let table = toml::de::DeTable::parse(&document).unwrap();
    assert_eq!(table.get_ref().get("name").unwrap().get_ref().as_str(), Some(text));
}

#[test]
fn invalid_paths_and_grpc_addresses_are_rejected() {
    for (text, path, printed) in [("/a2a/v1", "/a2a/v1", "\"/a2a/v1\""), ("/a/", "/a", "\"/a\""), ("/", "", "\"/\"")] {
        let read = UrlPath::read(text).unwrap();
        assert_eq!((read.0.as_str(), read.show().unwrap().as_str()), (path, printed));
    }
    for text in ["", "a", "//a", "/a?b", "/a b", "/a#b", "/a%20b", "https://a.example/a"] {
        assert!(UrlPath::read(text).unwrap_err().contains("/a2a/v1"), "{text}");
    }
    assert!(GrpcAddress::read("agent.example:443").is_ok() && GrpcAddress::read("https://agent.example").is_ok());
    for text in ["", "x", "agent.example", "https://agent.example/a"] {
        assert!(GrpcAddress::read(text).unwrap_err().contains("agent.example:443"), "{text}");
    }
}
