//! `a2a openapi`: prints the documents of the API.

use clap::{Args, builder::PossibleValuesParser};

use super::say;
use crate::{
    openapi::{Documents, Json, Publisher},
    protocol::{Protocols, Version},
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
    /// Prints YAML instead of JSON.
    #[arg(long)]
    yaml: bool,
}

/// Prints a document.
pub(super) fn run(arguments: &Openapi) -> anyhow::Result<()> {
    let document = document(arguments)?;
    say(&if arguments.yaml { document.yaml() } else { document.pretty() })?;
    Ok(())
}

fn document(arguments: &Openapi) -> anyhow::Result<Json> {
    let (documents, publisher) = (Documents::default(), Publisher::default());
    if arguments.openrpc {
        return Ok(documents.openrpc(&publisher, Protocols::default()));
    }
    if let Some(name) = &arguments.schema {
        let mut files = documents.schema_files();
        let index = files.iter().position(|(file, _)| file == name);
        return index.map(|index| files.swap_remove(index).1).ok_or_else(|| {
            let names: Vec<_> = files.iter().map(|(name, _)| &**name).collect();
            anyhow::anyhow!("--schema: `{name}` is not one of {}", names.join(", "))
        });
    }
    let version = Version::from_text(&arguments.protocol).unwrap_or_default();
    Ok(documents.openapi(version, &publisher))
}
