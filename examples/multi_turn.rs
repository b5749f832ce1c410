//! Multi-turn agent with saved state: `cargo run --example multi_turn [ADDRESS]`.
//!
//! A turn that ends with `InputRequired` leaves the task waiting for a message, which starts the next turn. The agent saves
//! the state that the next turn needs. With a durable store (`Server::store`), it also survives a restart.

use a2a_service::{
    agent::{self, End},
    server::Server,
};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Order {
    dish: Option<String>,
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let waiter = agent::from_fn(|turn, out| async move {
        let order: Order = turn.saved().unwrap_or_default();
        let Some(dish) = order.dish else {
            out.save(&Order { dish: Some(turn.text().to_owned()) }).await?;
            return Ok(End::input_required(format!("{}: for how many?", turn.text())));
        };
        let Ok(guests) = turn.text().trim().parse::<u32>() else {
            return Ok(End::input_required("A number, please."));
        };
        out.artifact("order").last().data(&serde_json::json!({"dish": dish, "guests": guests})).await?;
        Ok(End::completed("It is on its way."))
    });
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    Server::new(waiter).name("Waiter").serve(address).await
}
