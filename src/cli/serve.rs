//! `a2a serve`: an agent, until somebody stops it.

use std::{net::SocketAddr, process};

use anyhow::Context as _;

use super::{Agent, Serve};
use crate::{agent::demo::Demo, server::Server};

/// Serves until a signal, then drains; a second signal ends it at once.
pub(super) fn run(arguments: &Serve) -> anyhow::Result<()> {
    refuse_public(arguments.listen)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = match arguments.agent {
            Agent::Demo => Server::new(Demo),
        };
        let listen = arguments.listen;
        let bound = server.bind(listen).await;
        let bound = bound.with_context(|| format!("can't listen on {listen}; --listen names another address"))?;
        say(&banner(bound.addr()));
        bound
            .run_until(async {
                crate::server::signal().await;
                say("stopping: what runs may end, a second signal ends it now\n");
                tokio::spawn(async {
                    crate::server::signal().await;
                    end();
                });
            })
            .await;
        Ok(())
    })
}

/// Whoever reaches an address that is not loopback would be served: nothing here asks who they are yet.
fn refuse_public(listen: SocketAddr) -> anyhow::Result<()> {
    anyhow::ensure!(
        listen.ip().is_loopback(),
        "{listen} can be reached from elsewhere, and callers are not authenticated; listen on 127.0.0.1 or [::1], \
         and put a proxy that authenticates before it"
    );
    Ok(())
}

/// What to try next, in lines that can be copied.
fn banner(addr: SocketAddr) -> String {
    let message = r#"{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"hello"}]}"#;
    let text = format!(
        r#"listening on http://{addr}

The agent card:
  curl http://{addr}/.well-known/agent-card.json
HTTP+JSON:
  curl http://{addr}/message:send -H 'content-type: application/json' -d '{{"message":{message}}}'
JSON-RPC:
  curl http://{addr}/rpc -H 'content-type: application/json' -d '{{"jsonrpc":"2.0","id":1,"method":"SEND","params":{{"message":{message}}}}}'
gRPC (from a checkout, which has the proto files):
  grpcurl -plaintext -import-path proto -proto lf/a2a/v1/a2a.proto -d '{{"message":{message}}}' {addr} lf.a2a.v1.A2AService/SEND
Send "/help" instead of "hello" to see what else the demo agent does. Ctrl-C stops the server.
"#
    );
    text.replace("SEND", "SendMessage")
}

#[expect(clippy::print_stdout, reason = "it is what the program says")]
fn say(text: &str) {
    use std::io::Write as _;
    print!("{text}");
    // Who started it may read the address from a pipe; one who no longer reads does not stop it.
    drop(std::io::stdout().flush());
}

#[expect(clippy::exit, reason = "a second signal ends the program wherever it is")]
fn end() -> ! {
    process::exit(130)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_address_is_refused_with_a_way_out() {
        for addr in ["0.0.0.0:8080", "[::]:80", "192.168.1.2:1"] {
            let error = refuse_public(addr.parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains(addr) && error.contains("127.0.0.1"), "{error}");
        }
        assert!(refuse_public("127.0.0.2:1".parse().unwrap()).is_ok());
    }
}
