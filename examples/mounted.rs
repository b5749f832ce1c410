//! Agents mounted in an axum program: `cargo run --example mounted [ADDRESS]`.
//!
//! As the fallback service, an agent serves all paths without another route, including gRPC. Below a path (`nest_service`)
//! it serves HTTP+JSON and JSON-RPC. gRPC does not support path prefixes, and is then not listed on the card.

use a2a_service::{
    agent::{self, End},
    server::{Server, Signals},
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
    let (shout, shout_handle) = Server::new(shout).name("Shout").into_parts();
    let (echo, echo_handle) = Server::new(echo).name("Echo").into_parts();
    let app = Router::new()
        .route("/about", get(|| async { "Two agents, and a page." }))
        .nest_service("/shout", shout)
        .fallback_service(echo);
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let mut signals = Signals::listen();
    let shutdown = async move {
        signals.next().await;
        // Running turns may end, up to the grace period, before the connections are closed.
        tokio::join!(shout_handle.drain(), echo_handle.drain());
    };
    axum::serve(listener, app).with_graceful_shutdown(shutdown).await
}
