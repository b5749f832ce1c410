//! `a2a openapi`: prints the documents of the API.

use clap::{Args, builder::PossibleValuesParser};

use super::say;
use crate::{
    protocol::version::Version,
    server::documents::{OPENRPC, SCHEMAS, openapi},
};

/// Arguments of `a2a openapi`.
#[derive(Debug, Args)]
pub(super) struct Openapi {
    /// Protocol version of the OpenAPI document.
    #[arg(long, default_value = "1.0", value_parser = PossibleValuesParser::new(["1.0", "0.3"]))]
    protocol: String,
    /// Prints the OpenRPC document of JSON-RPC, which has the methods of both protocol versions.
    #[arg(long, conflicts_with_all = ["protocol", "schema"])]
    openrpc: bool,
    /// Prints the JSON Schema of a message, such as `lf.a2a.v1.Task`.
    #[arg(long, value_name = "NAME", conflicts_with = "protocol")]
    schema: Option<String>,
}

/// Prints a document.
pub(super) fn run(arguments: &Openapi) -> anyhow::Result<()> {
    Ok(say(document(arguments)?)?)
}

fn document(arguments: &Openapi) -> anyhow::Result<&'static str> {
    if arguments.openrpc {
        return Ok(OPENRPC);
    }
    if let Some(name) = &arguments.schema {
        return SCHEMAS.iter().find(|(file, _)| file == name).map(|(_, text)| *text).ok_or_else(|| {
            let names: Vec<_> = SCHEMAS.iter().map(|(name, _)| *name).collect();
            anyhow::anyhow!("--schema: `{name}` is not one of {}", names.join(", "))
        });
    }
    let version = Version::from_text(&arguments.protocol).unwrap_or_default();
    Ok(openapi(version))
}
