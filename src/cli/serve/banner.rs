//! Startup message: addresses, configuration, and example calls that work on this machine as they are printed.

use std::{fmt::Write as _, net::SocketAddr, path::Path};

use crate::{
    base::stderr::shell_command,
    cli::config::{Certificate, Config, Origin},
    server::{self, ClientAuth, Console, Tls},
    service::auth::list_tokens,
};

/// Message of the examples.
const MESSAGE: &str = r#"{"message":{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"hello"}]}}"#;

/// Server that the startup message describes.
pub(super) struct Banner<'a> {
    pub(super) config: &'a Config,
    /// First address of the server.
    pub(super) addr: SocketAddr,
    pub(super) tls: Option<&'a Tls>,
    pub(super) client_auth: ClientAuth,
    /// Origin of the key `token`.
    pub(super) token_origin: &'a Origin,
    /// Configuration file that was read.
    pub(super) file: Option<&'a Path>,
    /// Paths of several agents, or an empty one.
    pub(super) paths: &'a [String],
}

/// Returns an address as clients on this machine can use it.
pub(super) fn reachable(addr: SocketAddr) -> String {
    if addr.ip().is_unspecified() { format!("localhost:{}", addr.port()) } else { addr.to_string() }
}

impl Banner<'_> {
    /// Formats the message. `details` are lines about further addresses, stores and agents.
    pub(super) fn text(&self, details: &str) -> String {
        let addr = self.addr;
        let is_local = addr.ip().is_unspecified() || addr.ip().is_loopback();
        let hosts = [addr.ip().to_string(), if is_local { "localhost".to_owned() } else { String::new() }];
        let certified = self.tls.and_then(|tls| hosts.iter().find(|host| tls.is_for(host)));
        let authority =
            if certified == Some(&hosts[1]) { format!("localhost:{}", addr.port()) } else { reachable(addr) };
        // Flags of curl, grpcurl and this program, by which they trust the certificate.
        let [curl, grpcurl, a2a] = match (certified, &self.config.tls.cert) {
            (Some(_), Some(Certificate::File(cert))) => {
                let cert = shell_command(&[&absolute(cert)]);
                // A self-signed certificate is most often one of an authority, which this program does not accept as the server's.
                [format!(" --cacert {cert}"), format!(" -cacert {cert}"), " --insecure-tls".to_owned()]
            }
            _ if self.tls.is_some() => [" -k", " -insecure", " --insecure-tls"].map(str::to_owned),
            _ => ["", " -plaintext", ""].map(str::to_owned),
        };
        let url = format!("http{}://{authority}", if self.tls.is_some() { "s" } else { "" });
        let mut text = format!("listening on {url}\n{details}");
        if server::is_public(addr) {
            _ = writeln!(text, "other machines can call it at the addresses of this one ({addr})");
            if self.tls.is_none() {
                text +=
                    "without TLS, tokens and messages can be read in transit; set tls.cert, or use a proxy with TLS\n";
            }
        }
        if self.client_auth == ClientAuth::Required {
            text += "clients need a certificate: curl --cert FILE --key FILE, a2a --client-cert --client-key\n";
        }
        if let Some(file) = self.file {
            _ = writeln!(text, "configuration file: {}", absolute(file));
        }
        let (variable, assignment) = self.token();
        let [mut header, mut flag] = [const { String::new() }; 2];
        if !variable.is_empty() {
            header = format!("    -H \"authorization: Bearer ${variable}\" \\\n");
            flag = format!(" --token \"${variable}\"");
        }
        let program = program();
        let next_line = if curl.len() + url.len() > 42 { "\\\n    " } else { "" };
        let json = format!("{next_line}-H 'content-type: application/json'");
        let heading = if cfg!(feature = "console") && self.config.console != Some(Console::Off) {
            format!("Open {url}/ in a browser for the console, or call it from another terminal:")
        } else {
            "Call it from another terminal:".to_owned()
        };
        _ = write!(text, "\n{heading}\n{assignment}");
        for path in self.paths {
            _ = writeln!(text, "  {program} send {url}{path} hello{a2a}{flag}");
        }
        text + &format!(
            r"  curl{curl} {url}/message:send {json} \
{header}    -d '{MESSAGE}'
  grpcurl{grpcurl} \
{header}    -d '{MESSAGE}' \
    {authority} lf.a2a.v1.A2AService/SendMessage
"
        )
    }

    /// Returns the variable with a token for the examples, and a line that sets it. Empty if calls need none.
    fn token(&self) -> (&'static str, String) {
        let Config { token, auth, .. } = self.config;
        let value = match (token, &auth.tokens, &auth.jwt.issuer) {
            (Some(_), ..) if *self.token_origin == Origin::Variable("A2A_TOKEN".to_owned()) => {
                return ("A2A_TOKEN", String::new());
            }
            (Some(token), ..) => match token.file() {
                Some(path) => format!("$(cat {})", shell_command(&[&absolute(Path::new(path))])),
                None => format!("...  # as set at {}", self.token_origin),
            },
            (None, Some(path), _) if list_tokens(path).is_ok_and(|tokens| tokens.is_empty()) => {
                format!("$({} token --file {} new me)", program(), shell_command(&[&absolute(path)]))
            }
            (None, Some(_), _) => "...  # the secret that `a2a token new` has printed".to_owned(),
            (None, None, Some(issuer)) => format!("...  # an access token of {issuer}"),
            (None, None, None) => return Default::default(),
        };
        ("TOKEN", format!("  TOKEN={value}\n"))
    }
}

/// Returns the program as it was started.
fn program() -> String {
    std::env::args().next().map_or_else(|| "a2a".to_owned(), |name| shell_command(&[&name]))
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
