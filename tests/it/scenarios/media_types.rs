//! Media types: ignored by default, enforced by a strict server (specification 4.1.6, 4.4.1, 5.4).

use a2a_service::{
    pb::v1::{AgentCard, AgentSkill, Part},
    server::Server,
    service::Modes,
};

use super::*;
use crate::bindings::{Actor, Binding, each_binding, scenario, server};

fn message(parts: Vec<Part>) -> SendMessageRequest {
    let message = Message { parts, ..Message::user("") };
    SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
}

fn accepting(modes: &[&str]) -> SendMessageRequest {
    let accepted_output_modes = modes.iter().map(|mode| (*mode).to_owned()).collect();
    configured(text("", "hello"), SendMessageConfiguration { accepted_output_modes, ..Default::default() })
}

fn data() -> Part {
    Part::data(&serde_json::json!({"city": "Rome"})).unwrap()
}

scenario!(
    text_agent_reads_every_kind_of_part,
    kinds(not_openai = "a model gets images, not text about them"),
    async |agent: &dyn A2aService| {
        let map = Part::url("https://example.com/map.png", "image/png").named("map.png");
        let parts = vec![Part::text("Where is this?"), data(), Part::bytes("\x01\x02", "image/png"), map];
        let task = send(agent, message(parts.clone())).await;
        let lines = "Where is this?\n{\"city\":\"Rome\"}\n[file image/png, 2 bytes]\n\
                 [file map.png, image/png, https://example.com/map.png]";
        assert_eq!((task.state(), output(&task).as_str()), (TaskState::Completed, lines));
        assert_eq!(task.history[0].parts, parts, "the message is stored as it was sent");
        assert_eq!(output(&send(agent, message(vec![data()])).await), "{\"city\":\"Rome\"}");
    }
);

scenario!(
    media_types_are_not_enforced_by_default,
    kinds(not_openai = "a model rejects files that are no text"),
    async |agent: &dyn A2aService| {
        let part = Part::bytes("x", "application/x-unheard-of");
        assert_eq!(send(agent, message(vec![part])).await.state(), TaskState::Completed);
        assert_eq!(send(agent, accepting(&["image/png"])).await.state(), TaskState::Completed);
    }
);

fn modes(change: impl FnOnce(&mut Modes)) -> Modes {
    let mut modes = Modes::default();
    change(&mut modes);
    modes
}

async fn rejected(agent: &dyn A2aService, sent: SendMessageRequest) -> Error {
    let error = send_payload(agent, sent.clone()).await.err().unwrap();
    let streamed: Error = agent.send_streaming_message(request(sent)).await.err().unwrap().into();
    assert_eq!((streamed.kind(), streamed.to_string()), (error.kind(), error.to_string()));
    error
}

async fn strict_server_accepts_the_media_types_of_its_card(binding: Binding) {
    let agent = binding(Server::new(Reader(Actor::new())).modes(modes(|modes| modes.strict_media_types = true))).await;
    let png = || Part::bytes("x", "image/png; q=1");
    for parts in [vec![Part::text("x")], vec![Part::text("x"), data()], vec![png()]] {
        assert_eq!(send(&*agent, message(parts)).await.state(), TaskState::Completed);
    }
    let before = agent.list_tasks(request(a2a_service::pb::v1::ListTasksRequest::default())).await.unwrap();
    for (part, name) in [
        (Part::bytes("x", "audio/ogg"), "audio/ogg"),
        (Part::url("https://example.com/x", "text/csv"), "text/csv"),
        (Part::url("https://example.com/x", ""), "application/octet-stream"),
    ] {
        let error = rejected(&*agent, message(vec![Part::text("x"), part])).await;
        assert_error_kind(&error, ErrorKind::ContentTypeNotSupported);
        let detail = format!("message.parts[1]: {name} is not accepted; send text/plain, application/json, image/*");
        assert!(error.to_string().ends_with(&detail), "{error}");
        assert_eq!(error.metadata("field"), Some("message.parts[1]"));
    }
    for modes in [&["text/plain"][..], &["image/png", "TEXT/*"], &["*/*"], &["application/pdf"], &[]] {
        assert_eq!(send(&*agent, accepting(modes)).await.state(), TaskState::Completed, "{modes:?}");
    }
    let error = rejected(&*agent, accepting(&["image/png", "audio/*"])).await;
    assert_error_kind(&error, ErrorKind::ContentTypeNotSupported);
    assert_eq!(error.metadata("field"), Some("configuration.acceptedOutputModes"));
    let after = agent.list_tasks(request(a2a_service::pb::v1::ListTasksRequest::default())).await.unwrap();
    assert_eq!(after.get_ref().total_size, before.get_ref().total_size + 5, "rejected messages create no task");
}

/// The default media type of a kind of part applies only if the client states none.
async fn stated_media_type_is_checked_for_every_kind_of_part(binding: Binding) {
    let agent = binding(Server::new(Reader(Actor::new())).modes(modes(|modes| modes.strict_media_types = true))).await;
    let named = |part: Part, media_type: &str| Part { media_type: media_type.into(), ..part };
    for (part, name) in [
        (named(Part::text("x"), "text/markdown"), "text/markdown"),
        (named(data(), "application/geo+json"), "application/geo+json"),
    ] {
        let error = rejected(&*agent, message(vec![part])).await;
        assert_error_kind(&error, ErrorKind::ContentTypeNotSupported);
        assert!(error.to_string().contains(&format!("message.parts[0]: {name} is not accepted; send")), "{error}");
    }
    let accepted = vec![named(Part::text("x"), "Text/Plain; charset=utf-8"), named(data(), "application/json")];
    assert_eq!(send(&*agent, message(accepted)).await.state(), TaskState::Completed);
}

each_binding!(
    stated_media_type_is_checked_for_every_kind_of_part,
    not_at_0_3 = "text and data parts have no media types in 0.3"
);

/// A skill in the metadata of the message or of the request selects its media types; one that the card lacks selects nothing.
async fn named_skill_selects_its_media_types(binding: Binding) {
    let agent = binding(Server::new(Reader(Actor::new())).modes(modes(|modes| modes.strict_media_types = true))).await;
    let png = || vec![Part::bytes("x", "image/png")];
    let metadata = |skill: &str| serde_json::from_value(serde_json::json!({"skillId": skill})).ok();
    let of_request = |skill: &str, sent: SendMessageRequest| SendMessageRequest { metadata: metadata(skill), ..sent };
    let of_message = |skill: &str, mut sent: SendMessageRequest| {
        sent.message.as_mut().unwrap().metadata = metadata(skill);
        sent
    };
    for is_of_request in [true, false] {
        let naming = |skill: &str, sent| if is_of_request { of_request(skill, sent) } else { of_message(skill, sent) };
        assert_eq!(send(&*agent, naming("see", message(png()))).await.state(), TaskState::Completed);
        let error = rejected(&*agent, naming("see", text("", "hello"))).await;
        assert_error_kind(&error, ErrorKind::ContentTypeNotSupported);
        let detail = "message.parts[0]: text/plain is not accepted by the skill see; send image/*";
        assert!(error.to_string().ends_with(detail), "{error}");
        // The skill read has no media types of its own.
        let error = rejected(&*agent, naming("read", message(png()))).await;
        assert!(error.to_string().ends_with("by the skill read; send text/plain, application/json"), "{error}");
        for skill in ["read", "unknown"] {
            assert_eq!(send(&*agent, naming(skill, text("", "hello"))).await.state(), TaskState::Completed, "{skill}");
        }
        let error = rejected(&*agent, naming("read", accepting(&["application/pdf"]))).await;
        assert_eq!(error.metadata("field"), Some("configuration.acceptedOutputModes"));
    }
}

each_binding!(named_skill_selects_its_media_types);

each_binding!(
    strict_server_accepts_the_media_types_of_its_card,
    kinds(),
    not_in_v03_proto = "its proto file has no lists of tasks"
);

async fn message_without_text_is_rejected_if_text_is_required(binding: Binding) {
    let agent = binding(server().modes(modes(|modes| modes.require_text = true))).await;
    let error = rejected(&*agent, message(vec![data()])).await;
    assert_error_kind(&error, ErrorKind::InvalidParams);
    assert_eq!(fields(&error), ["message.parts"]);
    assert_eq!(send(&*agent, message(vec![data(), Part::text("hello")])).await.state(), TaskState::Completed);
}

each_binding!(message_without_text_is_rejected_if_text_is_required, kinds());

/// Agent that accepts text and JSON, and images by one of its skills.
struct Reader(Actor);

impl a2a_service::agent::Agent for Reader {
    async fn run(
        &self,
        turn: a2a_service::agent::Turn,
        out: a2a_service::agent::Updates,
    ) -> Result<a2a_service::agent::End, a2a_service::agent::Error> {
        self.0.run(turn, out).await
    }

    fn card(&self) -> AgentCard {
        let types = |all: &[&str]| all.iter().map(|media_type| (*media_type).to_owned()).collect();
        let see = AgentSkill {
            id: "see".into(),
            input_modes: types(&["image/*"]),
            output_modes: types(&["application/pdf"]),
            ..AgentSkill::default()
        };
        let read = AgentSkill { id: "read".into(), ..AgentSkill::default() };
        AgentCard::new("Reader")
            .modes(["text/plain", "application/json"], ["text/plain"])
            .with_skill(see)
            .with_skill(read)
    }
}
