//! `a2a admin cluster`, `release` and `bury`: the servers that share a database, and the end of what a stuck one runs.

use serde_json::json;

use super::{
    NotFound, Output, Target, Usage, audited, owner_name,
    reader::{self, Reader},
    tasks::{MAX_PAGE, Selection},
};
use crate::{
    cli::{
        show::safe,
        status::{table, text},
    },
    store::{Scope, TaskKey},
};

/// Runs `a2a admin cluster`.
pub(super) fn show(target: &Target, out: &Output<'_>) -> anyhow::Result<()> {
    let overview = Reader::open(target)?.run(async |store| store.overview().await)?;
    out.print(
        || {
            let mut json = overview.clone();
            json["store"] = target.path.display().to_string().into();
            json
        },
        || {
            let mut waiting = overview.clone();
            let replicas = waiting["replicas"].take();
            let rows = replicas.as_array().into_iter().flatten().cloned().map(|mut replica| {
                replica["seen"] = format!("{} s", text(&replica["seen_seconds"])).into();
                // Without year and seconds.
                replica["started"] = text(&replica["started"]).get(5..16).unwrap_or_default().replace('T', " ").into();
                replica["free"] = replica["free_turns"].take();
                replica
            });
            let names = ["id", "name", "state", "tasks", "turns", "free", "seen", "version", "started"];
            format!("{}\n{}", text(&waiting), table(&names, &rows.collect::<Vec<_>>()))
        },
    )
}

/// Runs `a2a admin release`.
pub(super) fn release(selection: &Selection, target: &Target, out: &Output<'_>) -> anyhow::Result<()> {
    let (reader, mut released) = (Reader::open(target)?, 0);
    for task in reader.tasks(&selection.filter(), usize::from(MAX_PAGE))?.tasks {
        let scope = Scope { owner: task.owner.as_str().into(), tenant: task.tenant.as_str().into() };
        let key = TaskKey::new(&scope.into(), &task.id);
        let Some(runner) = reader.run(async |store| store.release_task(&key).await)? else { continue };
        released += 1;
        audited("admin release", &*task.owner, 1);
        out.print(
            || json!({"task": task.id, "owner": task.owner, "tenant": task.tenant, "replica": runner.0}),
            || format!("replica {runner} has lost task {} of {}\n", safe(&task.id), owner_name(&task.owner)),
        )?;
    }
    let why = "no replica runs such a task, or only for its mail, which `a2a admin bury` hands over";
    if released > 0 { Ok(()) } else { Err(NotFound(format!("{}: {why}", target.path.display())).into()) }
}

/// Runs `a2a admin bury`.
pub(super) fn bury(replica: u64, target: &Target, out: &Output<'_>) -> anyhow::Result<()> {
    if target.agent.is_some() {
        return Err(Usage("each agent has replicas of its own; name the agent with --agent".to_owned()).into());
    }
    if !Reader::open(target)?.run(async |store| store.bury_replica(replica).await)? {
        let why = format!("there is no replica {replica}, or it is dead; `a2a admin cluster` lists them");
        return Err(NotFound(format!("{}: {why}", target.path.display())).into());
    }
    audited("admin bury", &*replica.to_string(), 1);
    let text = format!("replica {replica} was declared dead; if its server works, it joins with a new number\n");
    out.print(|| json!({"replica": replica}), || text)
}

/// Runs `a2a admin migrate`.
pub(super) fn migrate(target: &Target, out: &Output<'_>) -> anyhow::Result<()> {
    reader::migrate(target)?;
    audited("admin migrate", "", 1);
    out.print(|| json!({"migrated": true}), || "the tables are those of this version\n".to_owned())
}
