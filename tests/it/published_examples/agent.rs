//! The agents of the printed examples, in one: each is known by what it is told.

use a2a_service::{
    agent::{About, Agent, End, Error, Stopped, Turn, Updates},
    pb::v1::{Message, Part},
};
use serde_json::json;
use tokio::task::yield_now;

/// Plays them all.
#[derive(Clone, Copy, Default)]
pub(super) struct Player {
    /// Answers without a task, where it can.
    pub(super) replies: bool,
}

const JOKE: &str = "Why did the chicken cross the road? To get to the other side!";
const WHERE: &str = "Sure, I can help with that! Where would you like to fly to, and from where? Also, what are your preferred travel dates?";
const FOUND: &str = "Okay, I've found a flight for you. Confirmation XYZ123. Details are in the artifact.";
const TICKETS: &str = r#"[{"ticketNumber":"REQ12312","description":"request for VPN access"},{"ticketNumber":"REQ23422","description":"Add to DL - team-gcp-onboarding"}]"#;

impl Player {
    async fn joke(self, out: &Updates) -> Result<End, Error> {
        if self.replies {
            return Ok(End::Reply(Message::agent(JOKE)));
        }
        out.artifact("joke").text(JOKE).await?;
        Ok(End::Completed(None))
    }

    async fn orders(self, turn: &Turn, out: &Updates) -> Result<End, Error> {
        if self.replies {
            return Ok(End::Reply(Message::agent("Order #12345 has been processed successfully")));
        }
        if turn.history().next().is_some() {
            let order = json!({"orderId": "12345", "status": "confirmed", "total": 299.99});
            out.artifact("order_confirmation.json").data(&order).await?;
        } else {
            out.progress("Processing your request...").await?;
            out.artifact("result.txt").last().text("Processing...").await?;
        }
        Ok(End::Completed(None))
    }
}

impl Agent for Player {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        // What is said of its files too is not what it is known by.
        match turn.message().texts().next().unwrap_or_default() {
            "tell me a joke" => return self.joke(&out).await,
            "Process order #12345" => return self.orders(&turn, &out).await,
            "write a long paper describing the attached pictures" => {
                let mut paper = out.artifact("");
                // It thinks before each section, or they would be one.
                for section in ["<section 1...>", "<section 2...>"] {
                    paper.text(section).await?;
                    yield_now().await;
                }
                paper.last().text("<section 3...>").await?;
            }
            "I'd like to book a flight." => return Ok(End::InputRequired(Message::agent(WHERE))),
            text if text.starts_with("I want to fly from New York (JFK)") => {
                let flight = json!({
                    "confirmationId": "XYZ123", "from": "JFK", "to": "LHR", "departure": "2024-10-10T18:00:00Z",
                    "arrival": "2024-10-11T06:00:00Z", "returnDeparture": "...",
                });
                out.artifact("FlightItinerary.json").data(&flight).await?;
                return Ok(End::Completed(Some(Message::agent(FOUND))));
            }
            "Analyze this image and highlight any faces." => {
                let url = "https://storage.example.com/processed/task-bbb/output.png?token=xyz";
                let file = Part::url(url, "image/png").named("output.png");
                out.artifact("processed_image_with_faces.png").part(file).await?;
            }
            "Show me a list of my open IT tickets" => out.artifact("").text(TICKETS).await?,
            "Research quantum computing trends" => out.artifact("response").text("They go on.").await?,
            "Raise" => return Err(std::io::Error::other("the key is under the mat").into()),
            "Order" => return Ok(End::InputRequired(Message::agent("What?"))),
            // Takes its time.
            text if text.starts_with("Generate the Q1 sales report.") => {
                turn.canceled().await;
                return Err(Stopped.into());
            }
            "" => out.artifact("seen").parts(turn.message().parts.clone()).await?,
            text => out.artifact("echo").text(text).await?,
        }
        Ok(End::Completed(None))
    }

    fn about(&self) -> About {
        About::new("researcher").modes(["text/plain"], ["text/plain"]).skill("summarize", "Summarize a text", ["tool"])
    }
}
