//! Trace context (`traceparent`) of requests: reaches the agent and the webhooks of its task.

use a2a_service::agent::from_fn;

use super::*;
use crate::{
    bindings,
    scenarios::{output, text},
};

const FIRST: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const LAST: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// Answers with the trace of its turn.
fn server() -> Server {
    let agent = from_fn(|turn, out| async move {
        out.artifact("trace").text(format!("[{}]", turn.trace().unwrap_or("none"))).await?;
        Ok(if turn.text() == "end" { End::completed("done") } else { End::input_required("more?") })
    });
    Server::new(agent).push(true).push_options(options())
}

async fn send_traced(agent: &dyn A2aService, trace: Option<&str>, request: SendMessageRequest) -> Task {
    let call = Call { trace: trace.map(str::to_owned), ..Call::default() };
    match agent.send_message(call.request(request)).await.unwrap().into_inner().payload {
        Some(Payload::Task(task)) => task,
        other => panic!("no task: {other:?}"),
    }
}

fn with_hook(request: SendMessageRequest, receiver: &Receiver) -> SendMessageRequest {
    let task_push_notification_config = Some(hook(&receiver.url()));
    let configuration = SendMessageConfiguration { task_push_notification_config, ..Default::default() };
    SendMessageRequest { configuration: Some(configuration), ..request }
}

/// Waits for the notification of the end of a turn after some others, and returns the traces of all since them.
async fn traces(receiver: &Receiver, before: &mut usize) -> Vec<String> {
    let is_end = |one: &Received| {
        let state = state(&one.body).unwrap_or_default().replace('-', "_");
        state.ends_with("INPUT_REQUIRED") || state.ends_with("COMPLETED")
    };
    let all = receiver.wait(|all| all.iter().skip(*before).any(is_end)).await;
    let mut traces: Vec<String> = all[*before..].iter().map(|one| one.header("traceparent").to_owned()).collect();
    traces.dedup();
    *before = all.len();
    traces
}

async fn trace_is_that_of_the_last_message(agent: Arc<dyn A2aService>) {
    let (receiver, mut seen) = (Receiver::accepting().await, 0);
    let task = send_traced(&*agent, Some(FIRST), with_hook(text("", "begin"), &receiver)).await;
    assert_eq!(output(&task), format!("[{FIRST}]"));
    assert_eq!(traces(&receiver, &mut seen).await, [FIRST]);
    let task = send_traced(&*agent, None, text(&task.id, "on")).await;
    assert!(output(&task).ends_with("[none]"), "{task:?}");
    assert_eq!(traces(&receiver, &mut seen).await, [""]);
    let task = send_traced(&*agent, Some(LAST), text(&task.id, "end")).await;
    assert!(output(&task).ends_with(&format!("[{LAST}]")), "{task:?}");
    assert_eq!(traces(&receiver, &mut seen).await, [LAST]);
}

#[tokio::test]
async fn trace_reaches_agent_and_webhook_over_every_binding() {
    trace_is_that_of_the_last_message(bindings::in_process(server()).await).await;
    trace_is_that_of_the_last_message(bindings::in_file(server()).await).await;
    trace_is_that_of_the_last_message(bindings::grpc(server()).await).await;
    trace_is_that_of_the_last_message(bindings::rest(server()).await).await;
    trace_is_that_of_the_last_message(bindings::json_rpc(server()).await).await;
    trace_is_that_of_the_last_message(bindings::v03_grpc(server()).await).await;
    trace_is_that_of_the_last_message(bindings::v03_rest(server()).await).await;
    trace_is_that_of_the_last_message(bindings::v03_rpc(server()).await).await;
}

/// The trace is stored: a notification that is sent after a restart has it, and it does not outlive its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trace_is_stored_with_the_task() {
    let dir = tempfile::tempdir().unwrap();
    let accepts = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let receiver = {
        let accepts = Arc::clone(&accepts);
        let code =
            move || if accepts.load(Ordering::SeqCst) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Receiver::start(move |_| status(code())).await
    };
    let start = || async {
        let store = sqlite::Sqlite::open(&dir.path().join("a2a.db"), sqlite::Options::default()).unwrap();
        let bound = server().store(Arc::new(store)).bind("127.0.0.1:0").await.unwrap();
        let agent = client::rest(&format!("http://{}", bound.addr())).unwrap();
        let handle = bound.handle();
        (agent, handle, tokio::spawn(bound.run_until(std::future::pending())))
    };
    let (agent, handle, serving) = start().await;
    let task = send_traced(&*agent, Some(FIRST), with_hook(text("", "begin"), &receiver)).await;
    receiver.wait(|all| !all.is_empty()).await;
    handle.drain().await;
    timeout(SOON, serving).await.unwrap().unwrap();
    drop((agent, handle));
    accepts.store(true, Ordering::SeqCst);
    let mut seen = receiver.requests.lock().len();
    let (agent, handle, serving) = start().await;
    assert_eq!(traces(&receiver, &mut seen).await, [FIRST]);
    let task = send_traced(&*agent, None, text(&task.id, "end")).await;
    assert!(output(&task).ends_with("[none]"), "{task:?}");
    assert_eq!(traces(&receiver, &mut seen).await, [""]);
    handle.drain().await;
    serving.await.unwrap();
}
