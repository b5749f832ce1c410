//! Agent of the published examples, which selects the example by the text of the message.

use a2a_service::{
    agent::{Agent, End, Error, Stopped, Turn, Updates},
    pb::v1::{AgentCard, Part},
};
use serde_json::json;
use tokio::task::yield_now;

/// Agent that answers as the published examples do.
#[derive(Clone, Copy, Default)]
pub(super) struct ExampleAgent {
    /// Replies with a message instead of a task where an example does.
    pub(super) replies: bool,
}

const JOKE: &str = "Why did the chicken cross the road? To get to the other side!";
const WHERE: &str = "Sure, I can help with that! Where would you like to fly to, and from where? Also, what are your preferred travel dates?";
const FOUND: &str = "Okay, I've found a flight for you. Confirmation XYZ123. Details are in the artifact.";
const TICKETS: &str = r#"[{"ticketNumber":"REQ12312","description":"request for VPN access"},{"ticketNumber":"REQ23422","description":"Add to DL - team-gcp-onboarding"}]"#;

impl ExampleAgent {
    async fn joke(self, out: &Updates) -> Result<End, Error> {
        if self.replies {
            return Ok(End::reply(JOKE));
        }
        out.artifact("joke").text(JOKE).await?;
        Ok(End::Completed(None))
    }

    async fn orders(self, turn: &Turn, out: &Updates) -> Result<End, Error> {
        if self.replies {
            return Ok(End::reply("Order #12345 has been processed successfully"));
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

impl Agent for ExampleAgent {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        // Only the first text selects the example.
        match turn.message().texts().next().unwrap_or_default() {
            "tell me a joke" => return self.joke(&out).await,
            "Process order #12345" => return self.orders(&turn, &out).await,
            "write a long paper describing the attached pictures" => {
                let mut paper = out.artifact("");
                // Yields before each section, so that the sections are separate events.
                for section in ["<section 1...>", "<section 2...>"] {
                    paper.text(section).await?;
                    yield_now().await;
                }
                paper.last().text("<section 3...>").await?;
            }
            "I'd like to book a flight." => return Ok(End::input_required(WHERE)),
            text if text.starts_with("I want to fly from New York (JFK)") => {
                let flight = json!({
                    "confirmationId": "XYZ123", "from": "JFK", "to": "LHR", "departure": "2024-10-10T18:00:00Z",
                    "arrival": "2024-10-11T06:00:00Z", "returnDeparture": "...",
                });
                out.artifact("FlightItinerary.json").data(&flight).await?;
                return Ok(End::completed(FOUND));
            }
            "Analyze this image and highlight any faces." => {
                let url = "https://storage.example.com/processed/task-bbb/output.png?token=xyz";
                let file = Part::url(url, "image/png").named("output.png");
                out.artifact("processed_image_with_faces.png").part(file).await?;
            }
            "Show me a list of my open IT tickets" => out.artifact("").text(TICKETS).await?,
            "Research quantum computing trends" => out.artifact("response").text("They go on.").await?,
            "Raise" => return Err(std::io::Error::other("the key is under the mat").into()),
            "Order" => return Ok(End::input_required("What?")),
            // Runs until canceled.
            text if text.starts_with("Generate the Q1 sales report.") => {
                turn.canceled().await;
                return Err(Stopped.into());
            }
            "" => out.artifact("seen").parts(turn.message().parts.clone()).await?,
            text => out.artifact("echo").text(text).await?,
        }
        Ok(End::Completed(None))
    }

    fn card(&self) -> AgentCard {
        AgentCard::new("researcher").modes(["text/plain"], ["text/plain"]).skill(
            "summarize",
            "Summarize a text",
            ["tool"],
        )
    }
}
