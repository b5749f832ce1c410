//! Enumerated configuration values, written as one of a few words.

use std::path::PathBuf;

use super::{Value, brief, quoted};
use crate::{
    card::ProtocolBinding, service::DefaultKey, store::sqlite::Durability, telemetry::log::LogFormat,
    transport::FileBytes, v03::card::CardVersion,
};

/// Implements [`Value`] for an enum, with one word for each variant, and for the last one also a former word.
macro_rules! word_values {
    ($name:ident: $first:ident = $first_word:literal $(, $variant:ident = $word:literal)* $(; $last:ident = $last_word:literal $(| $former:literal)?)?) => {
        impl Value for $name {
            const KIND: &'static str =
                concat!("`", $first_word, "`" $(, ", `", $word, "`")* $(, " or `", $last_word, "`")?);

            fn read(text: &str) -> Result<Self, String> {
                match text {
                    $first_word => Ok(Self::$first),
                    $($word => Ok(Self::$variant),)*
                    $($last_word $(| $former)? => Ok(Self::$last),)?
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

word_values!(DefaultKey: Off = "off"; MessageId = "message_id" | "message-id");
word_values!(FileBytes: Auto = "auto", Base64 = "base64"; Raw = "raw");
word_values!(ProtocolBinding: JsonRpc = "JSONRPC", HttpJson = "HTTP+JSON"; Grpc = "GRPC");
word_values!(LogFormat: Text = "text"; Json = "json");
word_values!(Agent: Demo = "demo");
word_values!(Durability: Process = "process"; Power = "power");
word_values!(CardVersion: Merged = "merged", V1_0 = "1.0"; V0_3 = "0.3");

/// Agents that are built into the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agent {
    Demo,
}

/// Store of the tasks.
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
