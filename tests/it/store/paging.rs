//! What pages promise while tasks come and change: one that did not change is on them once, and none is on them twice.

use std::{collections::BTreeMap, sync::Arc};

use a2a_service::{pb::v1::TaskState, store::ListQuery};

use super::{
    MANY, Open,
    writer::{Writer, scope, status},
};

const TASKS: usize = 300;

/// The time that all have at first.
const TIME: i64 = 1000;

pub(super) async fn pages_skip_nothing_and_double_nothing(open: Open<'_>) {
    for step in [0, 1] {
        let store = open(MANY);
        let ada = scope("ada", "");
        let mut tasks = Vec::new();
        for n in 0..TASKS {
            // Not in the order of their ids.
            let mut task = Writer::within(&store, &ada, &format!("t-{:03}", n * 7 % TASKS), "c-1", TIME);
            task.commit([]).await.unwrap();
            tasks.push(task);
        }
        let (mut seen, mut changed) = (BTreeMap::<String, usize>::new(), 0);
        let mut query = ListQuery { scope: Arc::clone(&ada), limit: 23, ..ListQuery::default() };
        for n in 0.. {
            let page = store.list(&query).await.unwrap();
            assert_eq!(page.total, u64::try_from(TASKS + n).unwrap());
            for it in page.tasks {
                *seen.entry(it.id).or_default() += 1;
            }
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
            // One comes and three change: in the same millisecond, or later than all the others.
            let now = TIME + step * i64::try_from(n).unwrap();
            Writer::within(&store, &ada, &format!("u-{n:03}"), "c-1", now).commit([]).await.unwrap();
            for _ in 0..3 {
                tasks[changed].commit([status(TaskState::Working, now)]).await.unwrap();
                changed += 5;
            }
        }
        let still = tasks.iter().enumerate().filter(|(n, _)| n % 5 != 0 || *n >= changed);
        assert!(still.map(|it| it.1.key.id()).all(|it| seen.get(it) == Some(&1)), "{step}");
        assert!(seen.values().all(|it| *it == 1), "{step}");
    }
}
