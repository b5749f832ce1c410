//! Size of a context in bytes, which the limits of contexts use.

use a2a_service::{pb::v1::TaskState, store::Retention};

use super::{
    MANY, Open, finished,
    writer::{Writer, chunk, scope, status},
};

pub(super) async fn size_of_a_context_is_the_sum_of_its_tasks(open: Open<'_>) {
    let (store, ada, bob) = (open(MANY), scope("ada", ""), scope("bob", ""));
    let size = async |scope, context| store.context_bytes(scope, context, usize::MAX).await.unwrap();
    assert_eq!(size(&ada, "c-1").await, 0);
    let text = "x".repeat(5000);
    let mut open_task = Writer::within(&store, &ada, "open", "c-1", 5);
    open_task.commit([chunk("a", &text, false)]).await.unwrap();
    let first = size(&ada, "c-1").await;
    assert!((5000..5500).contains(&first), "{first}");
    // A log counts all its events, not the folded artifact.
    open_task.commit([chunk("a", &text, false)]).await.unwrap();
    let open_size = size(&ada, "c-1").await;
    assert!((10_000..10_500).contains(&open_size), "{open_size}");
    assert_eq!(store.log_bytes(&open_task.key).await.unwrap(), open_size);

    // Single-commit tasks are stored in other forms, small and large.
    let mut sizes = vec![open_size];
    for (id, bytes) in [("short", 100), ("long", 5000)] {
        let mut task = Writer::within(&store, &ada, id, "c-1", 6);
        task.commit([chunk("a", &text[..bytes], false), status(TaskState::Completed, 6)]).await.unwrap();
        let all = size(&ada, "c-1").await;
        let added = all - sizes.iter().sum::<usize>();
        assert!((bytes..2 * bytes + 500).contains(&added), "{id}: {added}");
        sizes.push(added);
    }
    let all = sizes.iter().sum::<usize>();
    for (scope, context) in [(&ada, "c-2"), (&bob, "c-1")] {
        let mut other = Writer::within(&store, scope, &format!("other-{context}"), context, 7);
        other.commit([chunk("a", &text, false)]).await.unwrap();
        assert!((5000..5500).contains(&size(scope, context).await));
    }
    assert_eq!(size(&ada, "c-1").await, all);
    let some = store.context_bytes(&ada, "c-1", 1).await.unwrap();
    assert!(sizes.contains(&some), "the sum may end with the task that brings it to the maximum: {some}");

    // A task without its log has the size of what remains, and none once it is deleted.
    let mut logs = Retention::FOREVER;
    logs.logs = finished(1).finished;
    store.sweep(&logs, 1000, &|_| false).await.unwrap();
    let folded = size(&ada, "c-1").await;
    assert!((open_size + 5100..=all).contains(&folded), "{folded} of {all}");
    store.sweep(&finished(1), 1000, &|_| false).await.unwrap();
    assert_eq!(size(&ada, "c-1").await, open_size);
}
