//! Minimal agent: `cargo run --example hello_world [ADDRESS]`.

use a2a_service::{
    agent::{self, End},
    server::Server,
};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let greeter = agent::from_fn(|turn, out| async move {
        out.artifact("greeting").last().text(format!("Hello, {}!", turn.text())).await?;
        Ok(End::Completed(None))
    });
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    Server::new(greeter).name("Greeter").serve(address).await
}
