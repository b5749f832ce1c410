//! Values of the configuration that are one of a few words.

use std::path::PathBuf;

use super::{Value, brief, quoted};
use crate::{
    card::ProtocolBinding, service::Dedupe, store::sqlite::Durability, transport::FileBytes, v03::card::CardVersion,
};

/// Reads and shows a type that has a value for each word.
macro_rules! words {
    ($name:ident: $first:ident = $first_word:literal $(, $variant:ident = $word:literal)* $(; $last:ident = $last_word:literal)?) => {
        impl Value for $name {
            const KIND: &'static str =
                concat!("`", $first_word, "`" $(, ", `", $word, "`")* $(, " or `", $last_word, "`")?);

            fn read(text: &str) -> Result<Self, String> {
                match text {
                    $first_word => Ok(Self::$first),
                    $($word => Ok(Self::$variant),)*
                    $($last_word => Ok(Self::$last),)?
                    _ => Err(format!("{} is not {}", brief(text), Self::KIND)),
                }
            }

            fn show(&self) -> Option<String> {
                Some(quoted(&match self {
                    Self::$first => $first_word,
                    $(Self::$variant => $word,)*
                    $(Self::$last => $last_word,)?
                }))
            }
        }
    };
}

words!(Dedupe: Off = "off"; MessageId = "message-id");
words!(FileBytes: Auto = "auto", Base64 = "base64"; Raw = "raw");
words!(ProtocolBinding: JsonRpc = "JSONRPC", HttpJson = "HTTP+JSON"; Grpc = "GRPC");
words!(Log: Text = "text"; Json = "json");
words!(Agent: Demo = "demo");
words!(Durability: Process = "process"; Power = "power");
words!(CardVersion: Merged = "merged", V1_0 = "1.0"; V0_3 = "0.3");

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    Text,
    Json,
}

/// The agents that come with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agent {
    Demo,
}

/// Where tasks are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StorePath {
    Memory,
    Sqlite(PathBuf),
}

impl Value for StorePath {
    const KIND: &'static str = "`memory` or `sqlite:PATH`";

    fn read(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "memory" => Ok(Self::Memory),
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            _ => Err(format!("{} is not {}", brief(text), Self::KIND)),
        }
    }

    fn show(&self) -> Option<String> {
        Some(match self {
            Self::Memory => quoted(&"memory"),
            Self::Sqlite(path) => quoted(&format_args!("sqlite:{}", path.display())),
        })
    }
}
