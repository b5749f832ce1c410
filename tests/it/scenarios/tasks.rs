//! Reading and listing tasks (specification 3.1.3, 3.1.4).

use a2a_service::pb::v1::{ListTasksRequest, ListTasksResponse};

use super::*;
use crate::bindings::scenario;

async fn list(agent: &dyn A2aService, list: ListTasksRequest) -> Result<ListTasksResponse, Error> {
    Ok(agent.list_tasks(request(list)).await?.into_inner())
}

fn ids(page: &ListTasksResponse) -> Vec<&str> {
    page.tasks.iter().map(|task| task.id.as_str()).collect()
}

scenario!(
    list_is_paged_newest_first,
    not_in_v03_proto = "its proto file has no lists of tasks",
    async |agent: &dyn A2aService| {
        let empty = list(agent, ListTasksRequest::default()).await.unwrap();
        assert_eq!((empty.tasks.len(), empty.page_size, empty.total_size, &*empty.next_page_token), (0, 50, 0, ""));
        let mut created = Vec::new();
        for n in 0..5 {
            created.push(send(agent, text("", &format!("task {n}"))).await.id);
        }
        created.reverse();
        let mut query = ListTasksRequest { page_size: Some(2), ..ListTasksRequest::default() };
        let mut seen = Vec::new();
        loop {
            let page = list(agent, query.clone()).await.unwrap();
            assert_eq!((page.page_size, page.total_size), (2, 5), "the total counts all pages");
            seen.extend(page.tasks.into_iter().map(|task| task.id));
            if page.next_page_token.is_empty() {
                break;
            }
            query.page_token = page.next_page_token;
        }
        assert_eq!(seen, created);
    }
);

scenario!(
    list_is_filtered,
    kinds(),
    not_in_v03_proto = "its proto file has no lists of tasks",
    async |agent: &dyn A2aService| {
        let done = send(agent, text("", "done")).await;
        let interrupted = send(agent, text("", "/ask what?")).await;
        let of = async |query: ListTasksRequest| {
            let page = list(agent, query).await.unwrap();
            assert_eq!(usize::try_from(page.total_size).unwrap(), page.tasks.len());
            page.tasks.into_iter().map(|task| task.id).collect::<Vec<_>>()
        };
        let by_state = ListTasksRequest { status: TaskState::InputRequired.into(), ..ListTasksRequest::default() };
        assert_eq!(of(by_state).await, [interrupted.id.as_str()]);
        let by_context = ListTasksRequest { context_id: done.context_id.clone(), ..ListTasksRequest::default() };
        assert_eq!(of(by_context).await, [done.id.as_str()]);
        let time = interrupted.status.as_ref().unwrap().timestamp;
        let by_time = ListTasksRequest { status_timestamp_after: time, ..ListTasksRequest::default() };
        assert!(of(by_time).await.contains(&interrupted.id), "the bound is inclusive");
        let nowhere = ListTasksRequest { context_id: "nowhere".into(), ..ListTasksRequest::default() };
        assert_eq!(of(nowhere).await, [""; 0]);
    }
);

scenario!(
    list_includes_artifacts_on_request,
    kinds(),
    not_in_v03_proto = "its proto file has no lists of tasks",
    async |agent: &dyn A2aService| {
        let task = send(agent, text("", "hello")).await;
        let plain = list(agent, ListTasksRequest::default()).await.unwrap();
        assert_eq!(plain.tasks, [Task { artifacts: vec![], ..task.clone() }]);
        let whole = ListTasksRequest { include_artifacts: Some(true), ..ListTasksRequest::default() };
        assert_eq!(list(agent, whole).await.unwrap().tasks, [task]);
    }
);

scenario!(list_can_omit_the_history, not_at_0_3 = "0 means unlimited in 0.3", async |agent: &dyn A2aService| {
    let task = send(agent, text("", "hello")).await;
    let none = ListTasksRequest { history_length: Some(0), ..ListTasksRequest::default() };
    assert_eq!(list(agent, none).await.unwrap().tasks, [Task { history: vec![], artifacts: vec![], ..task }]);
});

scenario!(
    invalid_list_parameters_are_rejected_by_field,
    not_in_v03_proto = "its proto file has no lists of tasks",
    async |agent: &dyn A2aService| {
        for (query, field) in [
            (ListTasksRequest { page_size: Some(0), ..Default::default() }, "pageSize"),
            (ListTasksRequest { page_size: Some(101), ..Default::default() }, "pageSize"),
            (ListTasksRequest { page_size: Some(-1), ..Default::default() }, "pageSize"),
            (ListTasksRequest { history_length: Some(-1), ..Default::default() }, "historyLength"),
            (ListTasksRequest { page_token: "nonsense".into(), ..Default::default() }, "pageToken"),
        ] {
            let error = list(agent, query).await.err().unwrap();
            assert_error_kind(&error, ErrorKind::InvalidParams);
            assert_eq!(fields(&error), [field]);
        }
        let query = ListTasksRequest { page_size: Some(100), ..ListTasksRequest::default() };
        assert_eq!(list(agent, query).await.unwrap().page_size, 100);
    }
);

scenario!(tenants_are_isolated, not_at_0_3 = "0.3 has no tenants", async |agent: &dyn A2aService| {
    let of = |tenant: &str, sent: SendMessageRequest| SendMessageRequest { tenant: tenant.into(), ..sent };
    let acme = send(agent, of("acme", text("", "hello"))).await;
    assert_error_kind(&get(agent, &acme.id).await.err().unwrap(), ErrorKind::TaskNotFound);
    assert_error_kind(&send_payload(agent, text(&acme.id, "hi")).await.err().unwrap(), ErrorKind::TaskNotFound);
    assert_eq!(ids(&list(agent, ListTasksRequest::default()).await.unwrap()), [""; 0]);
    let query = ListTasksRequest { tenant: "acme".into(), ..ListTasksRequest::default() };
    assert_eq!(ids(&list(agent, query).await.unwrap()), [acme.id.as_str()]);
    let get = GetTaskRequest { tenant: "acme".into(), id: acme.id.clone(), ..GetTaskRequest::default() };
    assert_eq!(agent.get_task(request(get)).await.unwrap().into_inner().into_task().unwrap(), acme);
});
