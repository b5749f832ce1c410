//! Agents mounted in an axum program: `cargo run --example mounted [ADDRESS]`.
//!
//! As the fallback service, an agent serves all paths without another route, including gRPC. Below a path (`nest_service`)
//! it serves HTTP+JSON and JSON-RPC. gRPC does not support path prefixes, and is then not listed on the card.

use a2a_service::{
    agent::{self, End},
    server::Server,
};
use axum::{Router, routing::get};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let echo = agent::from_fn(|turn, out| async move {
        out.artifact("echo").last().text(turn.text()).await?;
        Ok(End::Completed(None))
    });
    let shout = agent::from_fn(|turn, out| async move {
        out.artifact("shout").last().text(turn.text().to_uppercase()).await?;
        Ok(End::Completed(None))
    });
    let app = Router::new()
        .route("/about", get(|| async { "Two agents, and a page." }))
        .nest_service("/shout", Server::new(shout).name("Shout").router())
        .fallback_service(Server::new(echo).name("Echo").router());
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    axum::serve(tokio::net::TcpListener::bind(address).await?, app).await
}
