//! Client in five lines: `cargo run --example send URL TEXT`.

#![expect(clippy::print_stdout, reason = "the example prints the answer")]

use a2a_service::client::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(text)) = (arguments.next(), arguments.next()) else {
        return Err("usage: send URL TEXT".into());
    };
    let agent = Client::connect(&url).await?;
    println!("{}", agent.send(text).await?.text());
    Ok(())
}
